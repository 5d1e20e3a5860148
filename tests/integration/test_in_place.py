"""Tables stay where they are: a whole run with saves, metrics and lines copies none of them and compiles nothing twice."""

import gc
import os
from contextlib import ExitStack
from pathlib import Path

import jax
import pytest

from compilations import compilations, compilations_logged
from runs import QUICKSTART, xrex
from xrex.embeddings.native import kernel as native
from xrex.train import start
from xrex.train.run import begin, build_loop
from xrex.train.setup import build_program
from xrex.train.start import Options

STEPS, SAVE_EVERY = 200, 40
SETTLED = 2 * SAVE_EVERY
"""Steps after which every buffer that a save needs is there."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watched:
    """A step that notes after each call where tables and accumulators lie, and the size of the process."""

    def __init__(self, step):
        self.step, self.places, self.sizes = step, [], []

    def __call__(self, *arguments):
        state, scratch, report = self.step(*arguments)
        jax.block_until_ready(report)
        arrays = jax.tree.leaves((state.tables, state.slots))
        self.places.append(
            [s.data.unsafe_buffer_pointer() for array in arrays for s in array.addressable_shards],
        )
        gc.collect()
        self.sizes.append(resident_bytes())
        return state, scratch, report


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["native", "xla"])
def test_200_steps_with_saves_move_no_table_take_no_more_memory_and_compile_nothing_again(kernel, tmp_path, caplog):
    if kernel == "native" and native.why_unavailable():
        pytest.skip(native.why_unavailable())
    xrex("data", "produce", "--to", tmp_path / "log", "--topic", "engagements", "--examples", 20 * STEPS)
    overrides = (
        f"dataset.log.path={tmp_path / 'log'}",
        f"mesh.table_kernel={kernel}",
        "mesh.num_devices=1",
        "trainer.global_batch_size=20",
        "trainer.log_every_steps=10",
        f"checkpoint.save_every_steps={SAVE_EVERY}",
        "dataset.tables.0.num_embeddings=1000000",
    )
    plan = start.plan(Options(QUICKSTART, run_dir=tmp_path / "run", overrides=overrides))
    with ExitStack() as held, compilations_logged(caplog):
        program = build_program(plan.config)
        loop = build_loop(plan.config, program, program.fresh_state(), begin(plan, held, lambda: plan), held)
        table_bytes = sum(table.nbytes for table in loop.state.tables.values())
        watched = loop.step = Watched(loop.step)
        assert loop.run(lambda: False) == "completed"
    assert len(watched.places) >= STEPS
    assert all(places == watched.places[0] for places in watched.places)
    settled = watched.sizes[SETTLED:STEPS]
    assert max(settled) - min(settled) <= 0.05 * table_bytes
    compiled = [line.split()[1] for line in compilations(caplog) if line.startswith("Compiling")]
    assert compiled.count("jit(step)") == 1
