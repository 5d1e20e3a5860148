"""SIGINT and SIGTERM ask for an orderly end: finish the step, save, leave."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """Whether this process was told to stop, and by which signal."""

    def __init__(self):
        self.signum: int | None = None

    def __call__(self) -> bool:
        """True once a signal came."""
        return self.signum is not None

    def receive(self, signum: int, _frame) -> None:
        """The first signal is noted; the second ends the process at once, the newest complete checkpoint stays."""
        if self.signum is not None:
            os._exit(128 + signum)
        self.signum = signum
        sys.stderr.write(f"{signal.Signals(signum).name}: saving after this step; send it again to leave at once\n")
        sys.stderr.flush()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Watch SIGINT and SIGTERM while the block runs."""
    request = StopRequest()
    before = {s: signal.signal(s, request.receive) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
