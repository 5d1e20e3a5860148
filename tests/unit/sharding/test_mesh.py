import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from xrex.errors import ConfigError
from xrex.sharding.config import MeshConfig
from xrex.sharding.global_batch import local_rows, place
from xrex.sharding.mesh import make_mesh, over_rows, replicated


@pytest.mark.parametrize("count", [1, 2, 4, None])
def test_the_mesh_is_one_axis_over_the_devices_in_order(count):
    mesh = make_mesh(MeshConfig(num_devices=count), global_batch_size=8)
    assert mesh.axis_names == ("data",)
    assert mesh.devices.tolist() == jax.devices()[: count or 4]


@pytest.mark.parametrize(
    ("count", "batch", "says"),
    [
        (5, 10, "mesh.num_devices = 5: JAX sees 4 devices; ask for 4 or leave it null"),
        (4, 50, "trainer.global_batch_size = 50: must be a multiple of the 4 devices; try 52"),
        (3, 9, "mesh.num_devices = 3: must divide 1024"),
    ],
)
def test_devices_that_do_not_fit_are_refused_with_what_would(count, batch, says):
    with pytest.raises(ConfigError) as refused:
        make_mesh(MeshConfig(num_devices=count), batch)
    assert says in str(refused.value)


def test_rows_are_dealt_in_contiguous_blocks_and_dense_weights_lie_whole_everywhere():
    mesh = make_mesh(MeshConfig(num_devices=4), 8)
    rows = np.arange(24).reshape(8, 3)
    dealt, whole = jax.device_put(rows, over_rows(mesh)), jax.device_put(rows, replicated(mesh))
    assert [np.asarray(s.data).tolist() for s in dealt.addressable_shards] == [
        rows[i : i + 2].tolist() for i in (0, 2, 4, 6)
    ]
    assert all((np.asarray(s.data) == rows).all() for s in whole.addressable_shards)
    assert dealt.sharding.spec == PartitionSpec("data")


def test_one_device_is_given_the_rows_themselves():
    rows = {"ids": np.arange(8)}
    assert place(make_mesh(MeshConfig(num_devices=1), 8), rows) is rows


@pytest.mark.parametrize("count", [2, 4])
def test_placed_rows_come_back_as_they_were(count):
    mesh = make_mesh(MeshConfig(num_devices=count), 8)
    batch = {
        "ids": np.arange(16, dtype=np.int32).reshape(8, 2),
        "weight": (np.arange(8, dtype=np.float32), np.arange(8) > 3),
    }
    placed = place(mesh, batch)
    assert all(x.sharding.is_equivalent_to(over_rows(mesh), x.ndim) for x in jax.tree.leaves(placed))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(local_rows(x), y, strict=True), placed, batch)
