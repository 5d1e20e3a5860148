import hashlib
import json
import zlib

import jax.numpy as jnp
import numpy as np
import pytest
from saved_run import FILES, positions_at, state_at

from xrex.checkpoint import arrays
from xrex.checkpoint.digest import digest
from xrex.errors import CheckpointError


def _save(checkpoints, step, state):
    checkpoints.save(step, state, positions=positions_at(step), progress={"examples": 0}, files=FILES)


def test_a_digest_is_sha256_over_names_dtypes_shapes_and_bytes(opened, folder):
    checkpoints = opened()
    _save(checkpoints, 1, {"b": jnp.arange(6, dtype=jnp.int32).reshape(2, 3), "a": {"x": jnp.float32(0.5)}})
    checkpoints.wait()
    whole = b"a/x\0float32[]\0" + np.float32(0.5).tobytes()
    whole += b"b\0int32[2, 3]\0" + np.arange(6, dtype=np.int32).tobytes()
    assert digest(folder / "1") == hashlib.sha256(whole).hexdigest()


def test_equal_states_have_equal_digests_and_one_bit_changes_it(opened, folder):
    state = state_at(3)
    changed = state_at(3)
    changed["tables"]["d4"] = (
        changed["tables"]["d4"].at[2047, 3].set(jnp.nextafter(changed["tables"]["d4"][2047, 3], 0))
    )
    checkpoints = opened(keep_last=3)
    for step, saved in enumerate([state, state, changed], start=1):
        _save(checkpoints, step, saved)
    checkpoints.wait()
    assert digest(folder / "1") == digest(folder / "2") != digest(folder / "3")


def test_a_step_without_its_data_has_no_digest(opened, folder):
    checkpoints = opened()
    checkpoints.save_step(1)
    checkpoints.wait()
    for path in (folder / "1" / "state").rglob("d/*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="arrays cannot be read"):
        digest(folder / "1")


def test_checksums_are_crc32_of_equal_blocks_of_rows(opened, folder):
    checkpoints = opened()
    checkpoints.save_step(3)
    checkpoints.wait()
    saved = json.loads((folder / "3" / "checksums.json").read_text())
    table = np.asarray(state_at(3)["tables"]["d4"])
    kernel = np.asarray(state_at(3)["params"]["blocks"][0]["kernel"])
    assert (saved["version"], saved["algorithm"]) == (1, "crc32")
    assert saved["arrays"] == {
        "params/blocks/0/kernel": {"shape": [3, 5], "dtype": "bfloat16", "blocks": [zlib.crc32(kernel.tobytes())]},
        "step": {"shape": [], "dtype": "int32", "blocks": [zlib.crc32(np.int32(3).tobytes())]},
        "tables/d4": {
            "shape": [2048, 4],
            "dtype": "float32",
            "blocks": [zlib.crc32(table[row : row + 2].tobytes()) for row in range(0, 2048, 2)],
        },
    }


def test_a_block_that_no_process_wrote_fails_the_merge():
    part = {"t": {"shape": [1024, 2], "dtype": "float32", "blocks": {str(i): 0 for i in range(512)}}}
    with pytest.raises(CheckpointError, match="t: 512 of 1024 blocks were written"):
        arrays.merge_checksums([part])


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [((), 1), ((0, 4), 1), ((1,), 1), ((1023, 4), 1), ((96, 4), 32), ((1024,), 1024), ((1_049_600, 2), 1024)],
)
def test_an_array_has_the_most_blocks_that_divide_its_rows_and_1024(shape, blocks):
    assert arrays.block_count(shape) == blocks
