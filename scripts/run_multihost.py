"""Start N processes of one JAX run on this machine and end with the first one's failure; see run_multihost.sh."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

MODULE = "xrex.train.trainer_recsys"
GRACE_S = float(os.environ.get("RUN_MULTIHOST_GRACE_S", "30"))
"""How long the others may take to end after one has failed."""


def main(argv: list[str]) -> int:
    """Run the processes; returns the code of the first that failed (128 + n if signal n ended it), else 0."""
    if not argv or not argv[0].isdecimal() or int(argv[0]) < 1:
        found = repr(argv[0]) if argv else "nothing"
        print(f"usage: run_multihost.sh N [-m MODULE] ARGS...; N = {found}: give a number from 1", file=sys.stderr)
        return 2
    count, arguments = int(argv[0]), argv[1:]
    module = os.environ.get("RUN_MULTIHOST_MODULE", MODULE)
    if arguments[:1] == ["-m"]:
        module, arguments = arguments[1], arguments[2:]
    processes: list[subprocess.Popen] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: pass_on(number, processes))
    address = f"127.0.0.1:{free_port()}"
    for index in range(count):
        processes.append(start(module, arguments, index, count, address))
    ended: queue.Queue[int] = queue.Queue()
    for process in processes:
        in_background(lambda process=process: ended.put(process.wait()))
    copies = [
        in_background(copy_lines, source, target.buffer, index)
        for index, process in enumerate(processes)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    ]
    code = first_failure(processes, ended)
    for copy in copies:
        copy.join(timeout=5)  # Whatever inherited a pipe may hold it open.
    return code


def in_background(work: Callable, *arguments) -> threading.Thread:
    """Run `work` in a thread that ends with the program."""
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(module: str, arguments: list[str], index: int, count: int, address: str) -> subprocess.Popen:
    """Start one process in a session of its own: Ctrl-C in a terminal would else reach it twice."""
    environment = {
        "JAX_PLATFORMS": "cpu",
        **os.environ,
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(index),
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,  # JAX's default is every interface of the machine.
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def pass_on(number: int, processes: list[subprocess.Popen]) -> None:
    """Give a signal to every process that still runs."""
    for process in processes:
        process.send_signal(number)  # Popen leaves out those that it knows to have ended.


def copy_lines(source: IO[bytes], target: IO[bytes], index: int) -> None:
    """Copy whole lines, each with its prefix. If our reader has gone, the process's next line meets a closed pipe."""
    with source:
        for line in source:
            try:
                target.write(b"[%d] " % index + line.rstrip(b"\n") + b"\n")
                target.flush()
            except BrokenPipeError:
                return


def first_failure(processes: list[subprocess.Popen], ended: queue.Queue[int]) -> int:
    """Wait for all; once one has failed, the others have GRACE_S before they are killed."""
    code, deadline = 0, None
    for _ in processes:
        try:
            ended_with = ended.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            for process in processes:
                process.kill()
            ended_with = ended.get()
        if ended_with and not code:
            code = ended_with if ended_with > 0 else 128 - ended_with
            deadline = time.monotonic() + GRACE_S
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
