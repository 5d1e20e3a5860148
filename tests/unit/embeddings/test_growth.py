"""Tables that grew keep their rows, on one device and on four: compared with numpy, table by table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xrex.embeddings import growth
from xrex.embeddings.growth import grown
from xrex.embeddings.table import Arena
from xrex.schema.specs import TableSpec
from xrex.sharding.config import MeshConfig
from xrex.sharding.mesh import make_mesh, over_rows

BEFORE = (("first", 1500, "error"), ("hashed", 700, "error"), ("last", 1024, "row"))
AFTER = (("first", 5000, "error"), ("hashed", 700, "error"), ("last", 1030, "row"))


def arena(tables):
    specs = tuple(
        TableSpec(name=name, num_embeddings=rows, embedding_dim=3, oov=oov, salts=(1,) if name == "hashed" else ())
        for name, rows, oov in tables
    )
    return Arena("d3", 3, specs, ())


def by_table(given, values):
    """Table -> its logical rows; and the rows that only round it up."""
    rows = {t.name: values[given.first_row(t.name) :][: t.stored_rows] for t in given.tables}
    return {t.name: np.split(rows[t.name], [t.num_embeddings]) for t in given.tables}


@pytest.mark.parametrize("num_devices", [1, 4])
@pytest.mark.parametrize("width", [(3,), ()], ids=["table", "slots"])
@pytest.mark.parametrize("chunk", [700, 4_096])
def test_old_rows_stay_and_new_ones_are_fresh(num_devices, width, chunk, monkeypatch):
    monkeypatch.setattr(growth, "CHUNK_ROWS", chunk)
    before, after = arena(BEFORE), arena(AFTER)
    rng = np.random.default_rng(0)
    old, fresh = (rng.normal(size=(a.stored_rows, *width)).astype(np.float32) for a in (before, after))
    mesh = make_mesh(MeshConfig(num_devices=num_devices), 8)
    placed = [jax.device_put(jnp.array(x), over_rows(mesh)) for x in (old, fresh)]
    result = grown(after, before, *placed, mesh)
    assert result.sharding.is_equivalent_to(over_rows(mesh), result.ndim)
    found, olds, news = by_table(after, np.asarray(result)), by_table(before, old), by_table(after, fresh)
    np.testing.assert_array_equal(found["first"][0], np.concatenate([olds["first"][0], news["first"][0][1500:]]))
    np.testing.assert_array_equal(found["hashed"][0], olds["hashed"][0])
    # The row for ids outside the table is the last one: it moves, and its old place belongs to an id now.
    expected = np.concatenate([olds["last"][0][:1023], news["last"][0][1023:1029], olds["last"][0][1023:]])
    np.testing.assert_array_equal(found["last"][0], expected)
    for name in found:
        np.testing.assert_array_equal(found[name][1], news[name][1])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"num_embeddings": 1000}, None),
        ({"num_embeddings": 2000}, None),
        ({"num_embeddings": 999}, "it has 1,000 rows in the checkpoint: rows would be lost"),
        ({"num_embeddings": 2000, "oov": "hash"}, "ids outside it are hashed over all rows and would find other ones"),
        ({"num_embeddings": 2000, "salts": (5,)}, "ids are hashed over all rows and would find other ones"),
    ],
)
def test_only_a_table_in_which_every_id_finds_its_row_again_may_grow(fields, why):
    spec = {"name": "items", "num_embeddings": 1000, "embedding_dim": 3, "salts": (), **fields}
    assert TableSpec(**spec).cannot_continue(TableSpec(**(spec | {"num_embeddings": 1000}))) == why
