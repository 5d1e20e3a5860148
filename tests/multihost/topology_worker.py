"""`python -m topology_worker RUN_DIR...`: the trainer restarts each run and, instead of training on, saves at once.

What it has restored becomes RUN_DIR/again/STEP. All of the restart but the steps is the trainer's own.
"""

import sys
from pathlib import Path
from unittest import mock

from xrex.train import trainer_recsys
from xrex.train.start import Options
from xrex.utils.utils import from_process_zero, start_distributed


def save_again(loop, interrupted) -> str:
    """In place of Loop.run."""
    import jax

    from xrex.checkpoint.manager import Checkpoints
    from xrex.train.loop import COMPLETED
    from xrex.train.progress import merge_json

    for table in loop.state.tables.values():
        assert len(table.sharding.device_set) == jax.device_count()
        assert table.addressable_shards[0].data.shape[0] * jax.device_count() == table.shape[0]
    again = Checkpoints(loop.reporter.run_dir / "again", loop.config.checkpoint, merge_progress=merge_json)
    from_process_zero(again.prepare)
    loop.checkpoints = again
    loop.save()
    again.close()
    return COMPLETED


def main(*run_dirs: str) -> None:
    start_distributed()
    with mock.patch("xrex.train.loop.Loop.run", save_again):
        for run_dir in run_dirs:
            assert trainer_recsys.train(Options(run_dir=Path(run_dir))) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
