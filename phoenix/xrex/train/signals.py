"""SIGINT and SIGTERM ask for an orderly end: finish the step, save, leave."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

REPEATED_S = 1.0
"""A second SIGTERM so soon is the first again: Slurm sends it to each process and to srun, which passes it on."""


class StopRequest:
    """Whether this process was told to stop, and by which signal."""

    def __init__(self):
        self.signum: int | None = None
        self._received_s = 0.0

    def __call__(self) -> bool:
        """True once a signal came."""
        return self.signum is not None

    def receive(self, signum: int) -> None:
        """The first signal is noted; another ends the process at once, the newest complete checkpoint stays."""
        if self.signum is not None:
            if signum == self.signum == signal.SIGTERM and time.monotonic() - self._received_s < REPEATED_S:
                return
            os._exit(128 + signum)
        self.signum, self._received_s = signum, time.monotonic()
        name = signal.Signals(signum).name
        os.write(2, f"{name}: saving after this step; send it again to leave at once\n".encode())


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Watch SIGINT and SIGTERM while the block runs; an answer comes at once, also during a compilation.

    Python runs a signal's handler only between two instructions of the main thread, which may be away for minutes. The
    number of the signal arrives in the pipe at once, and a thread reads it there.
    """
    request = StopRequest()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    fd_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {s: signal.signal(s, lambda signum, frame: None) for s in (signal.SIGINT, signal.SIGTERM)}
    watcher = threading.Thread(target=_watch, args=(reader, request), name="xrex-signals", daemon=True)
    watcher.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(fd_before)
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(writer)  # ends the watcher
        watcher.join()


def _watch(reader: int, request: StopRequest) -> None:
    with open(reader, "rb", buffering=0) as signals:
        while signum := signals.read(1):
            if signum[0] in (signal.SIGINT, signal.SIGTERM):
                request.receive(signum[0])
