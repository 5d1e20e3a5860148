"""Many processes through faults of every kind, again and again: whatever happens, the run ends as if nothing had.

The short form is a slow test; `make faults` runs the long one, which nothing else runs.
"""

from contextlib import closing

import pytest

from chaos import append, check_exactly_once, rows_of, say
from faults import (
    FAULTS,
    NEED_A_SMALL_DISK,
    chance,
    fail,
    fill_the_disk_nearly,
    flip_a_byte,
    kill_the_coordinator,
    shuffled,
    small_disk,
    strike_again_and_again,
    uneven_messages,
)
from runs import QUICKSTART, SMALL, multihost, summary
from xrex.checkpoint.digest import digest
from xrex.data.log.directory import DirectoryTopicWriter

SHORT = (pytest.mark.slow, pytest.mark.timeout(900))
LONG = (
    pytest.mark.faults,
    pytest.mark.timeout(7_200),
    pytest.mark.skipif("'faults' not in config.option.markexpr", reason="takes long: make faults"),
)
OFTEN = ("trainer.global_batch_size=48", "checkpoint.save_every_steps=10", "trainer.log_every_steps=1")


@pytest.mark.multihost
@pytest.mark.parametrize(
    ("processes", "rows", "faults"),
    [
        pytest.param(
            2, 2_200, (kill_the_coordinator, fail, fill_the_disk_nearly, flip_a_byte), marks=SHORT, id="short"
        ),
        pytest.param(4, 14_000, 20, marks=LONG, id="long"),
    ],
)
def test_a_run_that_is_struck_again_and_again_ends_bit_equal_to_one_undisturbed(tmp_path, processes, rows, faults):
    moments = chance()
    messages = uneven_messages(rows, moments)
    with closing(DirectoryTopicWriter(tmp_path / "log", "engagements", 4)) as writer:
        append(writer, messages)
    arguments = ("--config", QUICKSTART, f"dataset.log.path={tmp_path / 'log'}", *SMALL, *OFTEN)
    undisturbed = tmp_path / "undisturbed"
    done = multihost(processes, *arguments, "--run-dir", undisturbed, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    last_step = summary(undisturbed)["step"]
    say(f"{rows:,} rows in {len(messages)} messages, {last_step} steps, {processes} processes")
    with small_disk(tmp_path / "disk") as can_be_full:
        possible = [fault for fault in FAULTS if can_be_full or fault not in NEED_A_SMALL_DISK]
        if isinstance(faults, int):
            chosen = shuffled(faults, possible, moments)
        else:
            chosen = [fault for fault in faults if fault in possible]
        run_dir = tmp_path / "disk" / "run"
        strike_again_and_again(processes, arguments, run_dir, chosen, moments, last_step=last_step)
        check_exactly_once(undisturbed, rows_of(messages))
        check_exactly_once(run_dir, rows_of(messages))
        assert summary(run_dir) == summary(undisturbed)
        assert digest(run_dir / "checkpoints" / str(last_step)) == digest(undisturbed / "checkpoints" / str(last_step))
