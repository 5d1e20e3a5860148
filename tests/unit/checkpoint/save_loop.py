"""save_loop.py FOLDER: trains and saves every step until it is killed, going on from the newest step it finds."""

import sys
from pathlib import Path

import jax
from saved_run import FILES, positions_at, state_at, sum_examples, target_like

from xrex.checkpoint import layout
from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.manager import Checkpoints
from xrex.checkpoint.restore import restore_state


def main(folder):
    newest = layout.newest_step(folder, say=lambda line: None)
    state = state_at(0) if newest is None else restore_state(newest, target_like(state_at(0)))
    checkpoints = Checkpoints(folder, CheckpointConfig(keep_last=2), merge_progress=sum_examples)
    checkpoints.prepare()
    train = jax.jit(lambda state: jax.tree.map(lambda x: (x + 1).astype(x.dtype), state), donate_argnums=0)
    print("ready", flush=True)
    for step in range(int(state["step"]) + 1, 1_000_000):
        state = train(state)
        checkpoints.save(step, state, positions=positions_at(step), progress={"examples": step}, files=FILES)


main(Path(sys.argv[1]))
