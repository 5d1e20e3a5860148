"""One process of the tests in test_first_cause.py: `python -m first_cause_worker CASE [ARGUMENTS]`."""

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace
from unittest import mock

from xrex.errors import CheckpointError, exit_code
from xrex.utils import utils


def steps(signal_name: str, victim: str, where: str) -> None:
    """Process `victim` sends itself a signal after two steps; the others are `where`: in a collective, or asleep."""
    for step in range(1_000):
        if step == 2 and utils.process_index() == int(victim):
            print(time.monotonic(), flush=True)
            os.kill(os.getpid(), signal.Signals[signal_name])
            time.sleep(60)  # a stopped process gets here a moment later
        if step == 2 and where == "asleep":
            time.sleep(60)
        utils.gather_bytes(b"step")


def failure(where: str) -> None:
    """Process 1 fails; the others are in a collective or asleep."""
    if utils.process_index() == 1:
        raise CheckpointError("RUN/checkpoints: the disk is full\nsay \033[31m more")
    if where == "asleep":
        time.sleep(60)
    utils.gather_bytes(b"")


def half_a_broadcast() -> None:
    """Process 0 fails after the header of a broadcast and before its bytes."""
    if utils.process_index() == 0:

        def no_block(*_):
            raise MemoryError("no room for 2 MB")

        utils._block = no_block
    utils.broadcast_one_to_all(bytes(2_000_000) if utils.process_index() == 0 else None)


def late_end() -> None:
    """Process 1 comes to its end 4 s later: the others wait for it, and nobody is taken for dead."""
    if utils.process_index() == 1:
        time.sleep(4)
    print("at the end", flush=True)


def interrupted() -> None:
    """All stop by agreement, with a code that is no failure; process 1 needs longer."""
    late_end()
    utils.exit_now(143)


def meet() -> None:
    """Whoever comes this far has met all others."""
    print("met", flush=True)


def meet_late(victim: str) -> None:
    """Process `victim` comes 4 s after the others."""
    if os.environ["JAX_PROCESS_ID"] == victim:
        time.sleep(4)


def meet_killed(victim: str) -> None:
    """Process `victim` is killed 1 s after it has called the others."""

    def killed_soon(*arguments):
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return meeting(*arguments)

    name = "_await_others" if victim == "0" else "_call_process_0"
    meeting = getattr(utils, name)
    if os.environ["JAX_PROCESS_ID"] == victim:
        setattr(utils, name, killed_soon)


def without_store() -> None:
    """A release of JAX whose key-value store is another one."""
    store = utils._key_value_store

    def changed(index):
        with mock.patch("jax._src.distributed.global_state", SimpleNamespace(client=object())):
            return store(index)

    utils._key_value_store = changed


def trainer() -> None:
    """The trainer, with another version of numpy on process 3."""
    from xrex.train import trainer_recsys

    if os.environ["JAX_PROCESS_ID"] == "3":
        versions = trainer_recsys.package_versions()
        trainer_recsys.package_versions = lambda: {**versions, "numpy": "0.1"}
    sys.argv[1:] = sys.argv[2:]
    trainer_recsys.run_command_line(trainer_recsys.app)


def main(case: str, *arguments: str) -> int:
    if case == "trainer":
        trainer()
    if case in ("meet_late", "meet_killed"):
        globals()[case](*arguments)
        case, arguments = "meet", ()
    if case == "failure_without_store":
        without_store()
        case = "failure"
    try:
        with utils.first_cause():
            utils.start_distributed()
            globals()[case](*arguments)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        utils.exit_now(exit_code(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
