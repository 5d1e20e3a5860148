import pytest
from saved_run import FILES, positions_at, state_at, sum_examples

from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.manager import Checkpoints


@pytest.fixture
def opened(tmp_path):
    """Makes a `Checkpoints` with the given config fields; `save(step)` saves the state of that step."""
    made = []

    def make(directory=tmp_path / "run" / "checkpoints", **fields):
        checkpoints = Checkpoints(directory, CheckpointConfig(**fields), merge_progress=sum_examples)
        made.append(checkpoints)
        checkpoints.prepare(say=lambda line: None)
        checkpoints.save_step = lambda step: checkpoints.save(
            step, state_at(step), positions=positions_at(step), progress={"examples": 10 * step}, files=FILES
        )
        return checkpoints

    yield make
    for checkpoints in made:
        checkpoints.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"
