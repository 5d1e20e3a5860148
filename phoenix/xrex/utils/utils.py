"""What several processes of one run must share: words of process 0, hashes that must agree, bytes of everyone, errors.

Everything travels as uint8, so neither a dtype nor a 64-bit number passes through JAX. Every function here is a meeting
point: all processes call it, in the same order. With one process none of them touches JAX.

No process waits for ever and none dies without words: a watchdog in each hears which process failed first, and why.
"""

import atexit
import contextlib
import ctypes
import hashlib
import importlib.util
import itertools
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from xai_configlib import Config, ConfigError
from xrex import errors
from xrex.errors import RunError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

JOIN_TIMEOUT_S = 25
"""How long the processes wait for the last one to start; $PHOENIX_JOIN_TIMEOUT_S changes it."""
CONNECT_TIMEOUT_S = 20
"""How long JAX's connections may take once all are there."""
BEAT_S = 1.0
"""Every process shows at this interval that it is there."""
SILENT_BEATS = 10
"""A process that let so many beats pass has gone; the others end, and name it. (Native code that keeps Python's other
threads from running for so long looks the same.)"""
HEARTBEAT_TIMEOUT_S = 30
"""JAX's own limit, which aborts all without our words. Its beat is half as long, so it may strike after 15 s already."""
SHUTDOWN_TIMEOUT_S = 20
"""How long the processes wait for each other at the end."""
GRACE_S = 2.0
"""How long the main thread may take to come by itself to the error that its watchdog has heard of."""
CLEANUP_S = 3.0
"""How long it may then take to leave. Together less than _abort_slowly gives."""
COORDINATOR_LINGER_S = GRACE_S + 0.5
"""JAX aborts the others when process 0, the coordinator, goes: it lets them leave before it."""
CHUNK_BYTES = 8 * 2**20

_HEADER = struct.Struct("<QQ")
_LENGTH = struct.Struct("<Q")
_BYTES, _CONFIG, _TREE, _ERROR = range(4)


def process_index() -> int:
    """This process's number; 0, without touching JAX, unless start_distributed (or JAX's own initialize) was called."""
    return sys.modules["jax"].process_index() if _is_distributed() else 0


def process_count() -> int:
    """How many processes run together; 1, without touching JAX, unless start_distributed was called."""
    return sys.modules["jax"].process_count() if _is_distributed() else 1


def _is_distributed() -> bool:
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def start_distributed() -> None:
    """Meet the other processes, if the environment says that there are any.

    JAX_NUM_PROCESSES (1: there are none), JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS ("HOST:PORT" of process 0) say so, as
    scripts/run_multihost.sh sets them. Where the first is unset JAX finds out: in a step of Slurm or Open MPI, on the
    hosts of a TPU pod, in an indexed job of Kubernetes; elsewhere the process is alone. Raises ConfigError if something is
    missing or wrong. If not all come within PHOENIX_JOIN_TIMEOUT_S (default JOIN_TIMEOUT_S), those that did raise
    RunError, which names those that did not. Starts this process's watchdog.
    """
    global _watchdog
    if _is_distributed():
        return
    limit_s = _environment_int("PHOENIX_JOIN_TIMEOUT_S", 1, 86_400, default=JOIN_TIMEOUT_S)
    cluster = _given() if "JAX_NUM_PROCESSES" in os.environ else _detected(limit_s)
    if cluster is None or cluster.count == 1:
        return
    address, count, index = cluster.address, cluster.count, cluster.index
    if not address.rpartition(":")[2].isdecimal() or _host_and_port(address)[1] > 65_535:
        raise ConfigError(f'JAX_COORDINATOR_ADDRESS = {address!r}: give "HOST:PORT" of process 0')
    deadline = time.monotonic() + limit_s
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The preemption service takes SIGTERM away from the trainer, which stops all processes at the same step itself.
    jax.config.update("jax_enable_preemption_service", False)
    _abort_slowly()
    if index == 0:
        lines = _await_others(count, address, deadline, limit_s)
    else:
        lines = {0: _call_process_0(index, count, address, deadline, limit_s)}
    limit = threading.Timer(CONNECT_TIMEOUT_S, _give_up_connecting, (index, count, address))
    limit.daemon = True
    limit.start()
    try:
        while index and _unreachable(address):  # refused once, gRPC would try again only after 1 s
            time.sleep(0.02)
        jax.distributed.initialize(
            address,
            count,
            index,
            cluster.device_ids,
            "deactivate",  # we have asked; asked again, JAX would take all devices but one from whoever runs under Slurm
            initialization_timeout=CONNECT_TIMEOUT_S,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_S,
        )
    finally:
        limit.cancel()
    if (store := _key_value_store(index)) is not None:
        _watchdog = _Watchdog(store, index, count, address, lines)
    with _stdout_on_stderr():  # Gloo tells there who is connected
        # Gloo gives the first collective 30 s. Connect now, while all are here: later ones may wait for a slow process 0.
        gather_bytes(b"")


def exit_now(code: int) -> NoReturn:
    """Leave a run of several processes: together with the others, or at once if this or another process has failed.

    After a failure JAX's exit handler would wait at a barrier for processes that themselves wait for this one in a
    collective; until the time-outs strike, all hang. os._exit closes the sockets, which the others notice at once.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if _watchdog is not None:
        _watchdog.end()
    if process_count() > 1 and process_index() == 0:
        time.sleep(COORDINATOR_LINGER_S)
    os._exit(code)


@contextlib.contextmanager
def first_cause() -> Iterator[None]:
    """What a process of several does with an error: tell it the others, and raise instead of it what was told before.

    A failure that comes from another process, such as a broken collective, waits for that one's words; they are raised
    with its class. Whoever does not come here in time is ended by its watchdog, with the same words and exit code.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        first = error if _watchdog is None else _watchdog.tell(error)
        if first is error:
            raise
        raise first from error


def broadcast_one_to_all(x: Any) -> Any:
    """What process 0 passes, on every process; the others pass None.

    x   a Config (its canonical bytes travel; every process gets an equal Config), bytes, or a tree of dict, list and
        tuple whose leaves are numpy or jax arrays (returned as numpy, same dtype, same bits), numbers, text or None.
        An exception is raised instead, on every process: a PhoenixError or ConfigError with its class and words, any
        other as itself on process 0 and as a RunError with its type and text elsewhere.
    With one process x itself is returned or raised. Raises TypeError (elsewhere RunError) for anything else.
    """
    if process_count() == 1:
        return _raised_or_returned(x)
    if process_index() == 0:
        try:
            message = _encoded(x)
        except Exception as error:
            x, message = error, _encoded(error)
        kind, payload = _broadcast_bytes(*message)
    else:
        kind, payload = _broadcast_bytes(0, b"")
    if kind == _ERROR:
        raise x if process_index() == 0 else _error_from_bytes(payload)
    if kind == _CONFIG:
        return _config_everywhere(payload)
    return payload if kind == _BYTES else _tree_from_bytes(payload)


def from_process_zero(make: Callable[[], T]) -> T:
    """Run `make` on process 0 only and give its result, something that broadcast_one_to_all takes, to every process.

    If it raises, every process raises: a PhoenixError or ConfigError with its class and words, anything else as itself
    on process 0 and as a RunError with its type and text elsewhere.
    """
    if process_count() == 1:
        return make()
    if process_index() != 0:
        return broadcast_one_to_all(None)
    try:
        made = make()
    except BaseException as error:  # Also KeyboardInterrupt: the others are waiting for an answer.
        made = error
    return broadcast_one_to_all(made)


def raise_together(error: BaseException | None) -> None:
    """Raise the error of the lowest-numbered process that has one on every process; None = no failure here.

    Classes and words travel as in from_process_zero.
    """
    if process_count() == 1:
        return _raised_or_returned(error)
    for index, data in enumerate(gather_bytes(_error_to_bytes(error) if error else b"")):
        if data:
            raise (error if error and index == process_index() else _error_from_bytes(data)) from None


def agree(name: str, data: bytes | str) -> None:
    """Raise RunError on every process unless all hold the same `data`; it names those that differ from process 0."""
    digest = hashlib.sha256(data.encode() if isinstance(data, str) else data).digest()
    digests = gather_bytes(digest)
    different = [f"process {i} ({d.hex()[:12]})" for i, d in enumerate(digests) if d != digests[0]]
    if different:
        raise RunError(
            f"{name}: {', '.join(different)} differs from process 0 ({digests[0].hex()[:12]}) by SHA-256; "
            f"start every process with the same code, packages and files"
        )


def agree_on_versions(versions: Mapping[str, str], *, only_warn: bool = False) -> None:
    """Raise RunError on every process unless all run the same versions; it names processes, packages and versions.

    versions   name -> version; the same names on every process
    only_warn  print the line on process 0 instead of raising
    """
    ours, *others = [json.loads(data) for data in gather_bytes(json.dumps(dict(versions)).encode())]
    different = [
        f"process {index} has {name} {theirs.get(name)}, process 0 has {ours[name]}"
        for index, theirs in enumerate(others, 1)
        for name in ours
        if theirs.get(name) != ours[name]
    ]
    if not different:
        return
    line = f"versions: {'; '.join(different)}: install the same on every host, or allow it with --allow-other-versions"
    if not only_warn:
        raise RunError(line)
    if process_index() == 0:
        print(f"warning: {line}", file=sys.stderr)


def gather_bytes(data: bytes) -> list[bytes]:
    """The bytes of every process, of any lengths, by process number, on every process."""
    if process_count() == 1:
        return [data]
    from jax.experimental.multihost_utils import process_allgather

    header = _uint8(_LENGTH.pack(len(data)))
    lengths = [_LENGTH.unpack(row.tobytes())[0] for row in process_allgather(header)]
    parts = [bytearray() for _ in lengths]
    for start in range(0, max(lengths), CHUNK_BYTES):
        for part, row in zip(parts, process_allgather(_block(data, start, max(lengths))), strict=True):
            part += row.tobytes()
    return [bytes(part[:length]) for part, length in zip(parts, lengths, strict=True)]


@dataclass(frozen=True)
class _Cluster:
    """What one process must know to meet the others."""

    address: str
    """HOST:PORT of process 0."""
    count: int
    index: int
    device_ids: Sequence[int] | None = None
    """Of its machine's devices, those of this process; None: all that it sees."""


_SIGNS = {
    "Slurm": {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"},
    "Open MPI": {"OMPI_COMM_WORLD_SIZE"},
    "a TPU pod": {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"},
    "Kubernetes": {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"},
}
"""The variables that whatever starts several processes gives each of them."""
_NEEDED = {"a TPU pod": "libtpu", "Kubernetes": "kubernetes"}
"""The package without which JAX sees nothing there."""


def _given() -> _Cluster | None:
    """What the environment says outright; None: this process is alone. Raises ConfigError."""
    count = _environment_int("JAX_NUM_PROCESSES", 1)
    if count == 1:
        return None
    index = _environment_int("JAX_PROCESS_ID", 0, count - 1)
    return _Cluster(os.environ.get("JAX_COORDINATOR_ADDRESS", ""), count, index)


def _detected(limit_s: int) -> _Cluster | None:
    """What JAX finds out; None, without importing JAX, where nothing speaks for several processes. Raises ConfigError."""
    where = next((name for name, variables in _SIGNS.items() if variables <= os.environ.keys()), None)
    # With libtpu this may be a host of a TPU, of whose others only the cloud tells.
    if where is None and not _is_installed("libtpu"):
        return None
    try:
        found = _asked_of_jax(limit_s)
    except Exception as error:  # whatever this cluster, or another release of JAX, raises
        why = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        raise _unknown_cluster(where or "a TPU pod", why) from None
    if found is None and where is not None:
        needed = _NEEDED.get(where)
        is_there = needed is None or _is_installed(needed)
        raise _unknown_cluster(where, "it sees no others" if is_there else f"it needs the package {needed} for that")
    return found


def _unknown_cluster(where: str, why: str) -> ConfigError:
    """What a process says that may be one of several; alone it would train what the others train too."""
    return ConfigError(
        f"{where}: JAX cannot tell which processes run together ({why}): set JAX_NUM_PROCESSES, JAX_PROCESS_ID and "
        "JAX_COORDINATOR_ADDRESS, or JAX_NUM_PROCESSES=1 for a process that is alone"
    )


def _asked_of_jax(limit_s: int) -> _Cluster | None:
    """JAX's own detection, which only its private module gives without connecting; None: it knows of no cluster."""
    from jax._src.clusters import ClusterEnv

    detect: Callable[..., Any] = ClusterEnv.auto_detect_unset_distributed_params
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that is not there: _detected says it on one line
        address, count, index, device_ids = detect(os.environ.get("JAX_COORDINATOR_ADDRESS"), *[None] * 4, limit_s)
    if count is None:
        return None
    # A process of Slurm gets the device of its number on the node, unless JAX_LOCAL_DEVICE_IDS says otherwise.
    return _Cluster(address, count, index, None if os.environ.get("JAX_LOCAL_DEVICE_IDS") else device_ids)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


class _Watchdog:
    """Two threads that hear of the first failure of all processes, and leave if the main thread does not.

    They use the key-value store of JAX's coordination service, which lives in process 0: whoever fails first writes its
    reason there, and each process its beats. Process 0 watches the beats of all, the others whether process 0 answers.
    Of a process that is killed process 0 hears at once: the operating system ends the line between them.
    """

    def __init__(self, store: Any, index: int, count: int, address: str, lines: dict[int, socket.socket]):
        """lines  by process: one that stays open as long as both live"""
        self.store, self.index, self.address, self.lines = store, index, address, lines
        self.watched = range(1, count) if index == 0 else range(1)
        self.beats = 0
        """Those of ours that process 0 has noted."""
        self.heard: dict[int, Any] = {}
        """By process: its newest beat."""
        self.silent = dict.fromkeys(self.watched, 0)
        """By process: how often we looked since then. No clock: all may be stopped together, and go on."""
        self.first: Exception | None = None
        self.first_known, self.failed, self.left = threading.Event(), threading.Event(), threading.Event()
        """Somebody's failure is known; the main thread has come to one; it has said it and leaves."""
        self.ending = False
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._listen)]
        for thread in self.threads:
            thread.start()
        atexit.register(self.end)

    def tell(self, error: BaseException) -> BaseException:
        """The main thread has failed: the first failure of all processes, which may be this one."""
        if _is_consequence(error):
            self.first_known.wait((SILENT_BEATS + 5) * BEAT_S)
        if self.first is None:
            try:
                self.store.key_value_set_bytes(_FIRST, _error_to_bytes(error, f"process {self.index} failed: "))
            except Exception:  # another was faster, or process 0 has gone
                self.first_known.wait(GRACE_S)
        self.failed.set()
        first = self.first
        if first is None or (str(error) and str(first).endswith(str(error))):
            return error  # told by us, or raised on every process
        return first

    def end(self) -> None:
        """The main thread is done: after a failure it leaves, else it waits for the others, watched to the last."""
        if self.failed.is_set():
            self.left.set()
            return
        try:
            self.store.wait_at_barrier("xrex/end", 1_000 * SHUTDOWN_TIMEOUT_S)
        except Exception as error:
            why = " ".join(str(error).split())[:400]
            _say_and_exit(self.tell(RunError(f"the processes have not come to the end together: {why}")))
        self.ending = True
        sys.modules["jax"].distributed.shutdown()
        for thread in self.threads:
            thread.join(2 * BEAT_S)

    def _beat(self) -> None:
        for beat in itertools.count(1):
            try:
                self.store.key_value_set_bytes(f"{_BEATS}{self.index}", b"%d" % beat, allow_overwrite=True)
            except Exception:  # process 0 has gone, or all is over: _listen sees it too
                return
            self.beats = beat
            time.sleep(BEAT_S)

    def _listen(self) -> None:
        first = None
        while first is None:
            try:
                first = _error_from_bytes(self.store.blocking_key_value_get_bytes(_FIRST, int(1_000 * BEAT_S)))
            except Exception as error:
                if self.ending:
                    return
                first = self._silence() if _is_timeout(error) else RunError(_PROCESS_0_GONE)
        self.first = first
        self.first_known.set()
        if not (self.failed.wait(GRACE_S) and self.left.wait(CLEANUP_S)):
            _say_and_exit(first)

    def _silence(self) -> RunError | None:
        """The error that names the processes without a beat, once there are any."""
        try:
            beats = dict(self.store.key_value_dir_get_bytes(_BEATS)) if self.index == 0 else {f"{_BEATS}0": self.beats}
        except Exception:
            return None
        for process in self.watched:
            beat = beats.get(f"{_BEATS}{process}")
            self.silent[process] = self.silent[process] + 1 if beat == self.heard.get(process) else 0
            self.heard[process] = beat
        # JAX aborts us at once when process 0 dies, and its thread that sleeps in _abort_slowly answers no calls.
        if self.index and self.silent[0] and isinstance(_unreachable(self.address), ConnectionRefusedError):
            return RunError(_PROCESS_0_GONE)
        gone = [process for process, line in self.lines.items() if self.index == 0 and not _is_open(line)]
        silent = [process for process, looks in self.silent.items() if looks >= SILENT_BEATS]
        if gone:
            error = RunError(f"{_who(gone)} gone without a word: {_HINT}")
        elif silent:
            error = RunError(f"{_who(silent)} not answered for {SILENT_BEATS * BEAT_S:.0f} s: {_HINT}")
        else:
            return None
        if self.index:
            return error
        with contextlib.suppress(Exception):
            self.store.key_value_set_bytes(_FIRST, _error_to_bytes(error))
        return None  # comes back to all from the store, unless another's reason was there before


_watchdog: _Watchdog | None = None
_FIRST, _BEATS = "xrex/first", "xrex/beats/"
_JOIN, _ALL_HERE, _STILL_HERE = b"xrex/join ", b"all here", b"."
_JOIN_HINT = (
    "see that it runs, with the same JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES; "
    "where hosts start further apart, set PHOENIX_JOIN_TIMEOUT_S=SECONDS on all"
)
_HINT = "killed, out of memory, stopped or cut off; see its last lines and its machine, then go on from the checkpoint"
_PROCESS_0_GONE = f"process 0 has gone without a word: {_HINT}"


def _who(processes: list[int]) -> str:
    if len(processes) == 1:
        return f"process {processes[0]} has"
    return f"processes {', '.join(map(str, processes))} have"


def _key_value_store(index: int) -> Any:
    """JAX's client of the coordination service: private, but the one store that all processes reach.

    None, with a warning, if this release of JAX does not let us use it as the watchdog does.
    """
    try:
        from jax._src.distributed import global_state

        store: Any = global_state.client
        mine = f"{_BEATS}{index}"
        store.key_value_set_bytes(mine, b"0", allow_overwrite=True)
        _ = dict(store.key_value_dir_get_bytes(_BEATS))[mine], store.wait_at_barrier
        try:
            store.blocking_key_value_get_bytes("xrex/nothing", 1)
        except RuntimeError as error:
            if not _is_timeout(error):
                raise LookupError(str(error)) from None
        return store
    except (ImportError, AttributeError, TypeError, LookupError) as error:
        print(f"warning: no watchdog with this jax ({error}): see only the failing process's lines", file=sys.stderr)
        return None


def _is_timeout(error: Exception) -> bool:
    """Whether the key-value store says that nobody wrote the key in time."""
    return "DEADLINE_EXCEEDED" in str(error)


def _abort_slowly() -> None:
    """Give the watchdog 6 s when a thread of JAX aborts the process, as it does at once when process 0 has gone.

    The handler of SIGABRT (6) becomes sleep() of the C library, which gets the number as its argument and needs neither
    Python nor memory. When it returns, the abort goes on.
    """
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _await_others(count: int, address: str, deadline: float, limit_s: int) -> dict[int, socket.socket]:
    """Process 0: note who calls, and tell all once nobody is missing. Else raise RunError, as they do, naming who is.

    Returns the lines to them, which stay open. It listens where JAX's service will in a moment: that one names nobody,
    and aborts all.
    """
    here: dict[int, socket.socket] = {}
    with _listening(address) as door:
        while len(here) < count - 1 and (left_s := deadline - time.monotonic()) > 0:
            door.settimeout(min(left_s, BEAT_S))
            with contextlib.suppress(OSError, ValueError):  # nobody called during this beat, or none of us
                _let_in(door.accept()[0], here, count)
            here = {process: line for process, line in here.items() if _is_there(line)}
    missing = [process for process in range(1, count) if process not in here]
    words = f"{_who(missing)} not come to {address} within {limit_s} s: {_JOIN_HINT}" if missing else ""
    for line in here.values():
        with contextlib.suppress(OSError):
            line.sendall(_JOIN + (words.encode() or _ALL_HERE))
        if missing:
            line.close()
    if missing:
        raise RunError(words)
    return here


def _let_in(caller: socket.socket, here: dict[int, socket.socket], count: int) -> None:
    """Note who calls, or tell it why not. Raises ValueError if it is none of us."""
    caller.settimeout(BEAT_S)
    _, _, numbers = caller.recv(64).partition(_JOIN)
    process, its_count = map(int, numbers.split())
    if its_count != count:
        caller.sendall(_JOIN + b"JAX_NUM_PROCESSES = %d, process 0 has %d: give all the same" % (its_count, count))
    elif process in (0, *here):
        caller.sendall(_JOIN + b"JAX_PROCESS_ID = %d, which has come already: give each its own" % process)
    else:
        caller.setblocking(False)
        here[process] = caller


def _is_there(line: socket.socket) -> bool:
    """Whether the process at the other end still waits; it hears from this that we are there."""
    try:
        line.send(_STILL_HERE)
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _call_process_0(index: int, count: int, address: str, deadline: float, limit_s: int) -> socket.socket:
    """Another process: call process 0 until it answers that all are there; raise RunError with its words otherwise.

    Returns the line to it, which stays open.
    """
    answer, why = b"", "no answer"
    while time.monotonic() < deadline:
        try:
            line = socket.create_connection(_host_and_port(address), timeout=BEAT_S)
            try:
                line.sendall(_JOIN + b"%d %d" % (index, count))
                line.settimeout(SILENT_BEATS * BEAT_S)
                answer = _answer(line)
            finally:
                if answer != _ALL_HERE:
                    line.close()
        except OSError as error:
            why = error
        else:
            if answer == _ALL_HERE:
                return line
        if answer:
            break
        time.sleep(0.1)
    if not answer:
        gone = f"process 0 has not come to {address} within {limit_s} s ({why}), or has given up to wait for another"
        raise RunError(f"{gone}: {_JOIN_HINT}")
    raise RunError(answer.decode())


def _answer(line: socket.socket) -> bytes:
    """What process 0 says behind _JOIN; empty if it goes before."""
    heard = b""
    while not heard.endswith(_JOIN + _ALL_HERE) and (more := line.recv(4096)):
        heard += more
    return heard.partition(_JOIN)[2]


def _is_open(line: socket.socket) -> bool:
    """Whether the process at the other end lives, as far as the network tells; it never says anything."""
    try:
        return line.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _listening(address: str) -> socket.socket:
    """Process 0's socket, where JAX's service will listen."""
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", f"[::]:{_host_and_port(address)[1]}")
    try:
        host, port = _host_and_port(bind)
        if host != "::":
            return socket.create_server((host, port), family=socket.getaddrinfo(host, port)[0][0])
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except (OSError, ValueError, OverflowError) as error:
        why = f"process 0 cannot listen at {bind} ({error})"
        raise ConfigError(f"JAX_COORDINATOR_ADDRESS = {address!r}: {why}; give a free port of its machine") from None


def _give_up_connecting(index: int, count: int, address: str) -> None:
    """End this process because not all have connected, though all had come; JAX would abort it a few seconds later."""
    who = "process 0" if index and _unreachable(address) else f"at least one of {count} processes"
    _say_and_exit(RunError(f"{who} has gone while all connected to {address}: {_HINT}"))


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _unreachable(address: str) -> OSError | None:
    """Why nobody can be reached at HOST:PORT; None if somebody listens there."""
    try:
        socket.create_connection(_host_and_port(address), timeout=BEAT_S).close()
    except OSError as error:
        return error
    return None


def _say_and_exit(error: BaseException) -> NoReturn:
    """End the process from a thread, whatever the main thread does."""
    text = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(error))
    os.write(2, f"{text}\n".encode(errors="backslashreplace"))
    if _watchdog is not None and _watchdog.index == 0:
        time.sleep(COORDINATOR_LINGER_S)
    os._exit(errors.exit_code(error))


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """What native code prints on stdout goes to stderr: stdout belongs to the command's answer."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _is_consequence(error: BaseException | None) -> bool:
    """Whether it may come from another process that has gone: a failed collective or a lost coordinator."""
    while error is not None:
        text = str(error)
        if (
            "Gloo" in text
            or "NCCL" in text
            or (type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" not in text)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def _raised_or_returned(x: Any) -> Any:
    if isinstance(x, BaseException):
        raise x
    return x


def _environment_int(name: str, least: int, most: int | None = None, *, default: int | None = None) -> int:
    if default is not None and name not in os.environ:
        return default
    text = os.environ.get(name, "")
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise ConfigError(
            f"{name} = {text!r}: give a whole number from {least}" + ("" if most is None else f" to {most}")
        )
    return int(text)


def _broadcast_bytes(kind: int, data: bytes) -> tuple[int, bytes]:
    """Process 0's kind and bytes on every process: first a header of fixed size, then the bytes in chunks."""
    from jax.experimental.multihost_utils import broadcast_one_to_all as broadcast_array

    header = broadcast_array(_uint8(_HEADER.pack(kind, len(data))))
    kind, length = _HEADER.unpack(header.tobytes())
    whole = bytearray()
    for start in range(0, length, CHUNK_BYTES):
        whole += broadcast_array(_block(data, start, length)).tobytes()
    return kind, bytes(whole[:length])


def _block(data: bytes, start: int, length: int) -> "np.ndarray":
    """The chunk of `data` at `start`, zero-padded to the size it has on every process when the longest is `length`.

    Sizes are powers of two, so that few shapes are ever compiled.
    """
    size = min(CHUNK_BYTES, 1 << (length - start - 1).bit_length())
    return _uint8(data[start : start + size].ljust(size, b"\0"))


def _uint8(data: bytes) -> "np.ndarray":
    # numpy is imported where arrays travel: one process, and every `xrex config` command, must not wait for it.
    import numpy as np

    return np.frombuffer(data, np.uint8)


def _encoded(x: Any) -> tuple[int, bytes]:
    if isinstance(x, BaseException):
        return _ERROR, _error_to_bytes(x)
    if isinstance(x, Config):
        return _CONFIG, x.to_json().encode()
    if isinstance(x, bytes):
        return _BYTES, x
    return _TREE, _tree_to_bytes(x)


def _config_everywhere(payload: bytes) -> Config:
    """The config from its bytes; a process that cannot read them (other code, say) fails all, with its reason.

    Unknown fields in it were kept by process 0, which has said so.
    """
    config: Any = None
    error = None
    try:
        config = Config.from_json(payload, unknown="keep", say=lambda line: None)
    except ConfigError as failure:
        error = failure
    raise_together(error)
    return config


def _error_to_bytes(error: BaseException, prefix: str = "") -> bytes:
    """The nearest class of ours that the error is of, and its words."""
    for base in type(error).__mro__:
        if vars(errors).get(base.__name__) is base:
            return json.dumps([base.__name__, f"{prefix}{error}"]).encode()
    prefix = prefix or f"process {process_index()}: "
    return json.dumps(["RunError", f"{prefix}{type(error).__name__}: {error}"]).encode()


def _error_from_bytes(data: bytes) -> Exception:
    name, words = json.loads(data)
    return getattr(errors, name)(words)


def _tree_to_bytes(tree: Any) -> bytes:
    """Length of the skeleton, the skeleton as JSON, then the raw bytes of the arrays in the order it names them."""
    arrays: list[np.ndarray] = []
    skeleton = json.dumps(_skeleton(tree, "x", arrays)).encode()
    return b"".join([_LENGTH.pack(len(skeleton)), skeleton, *(array.tobytes() for array in arrays)])


def _skeleton(node: Any, path: str, arrays: "list[np.ndarray]") -> Any:
    """The tree as JSON, with {"array": [dtype, shape]} for the arrays, which are appended to `arrays`."""
    if node is None or type(node) in (bool, int, float, str):
        return node
    if type(node) is dict and all(type(key) is str for key in node):
        return {"dict": {key: _skeleton(item, f"{path}[{key!r}]", arrays) for key, item in node.items()}}
    if type(node) in (list, tuple):
        return {type(node).__name__: [_skeleton(item, f"{path}[{i}]", arrays) for i, item in enumerate(node)]}
    if not hasattr(node, "__array__"):
        raise TypeError(
            f"{path} is a {type(node).__name__}: broadcast a Config, bytes, or a dict, list or tuple of arrays"
        )
    import numpy as np

    array = np.asarray(node)
    arrays.append(array)
    return {"array": [_dtype_name(array.dtype, path), array.shape]}


def _dtype_name(dtype: "np.dtype", path: str) -> str:
    """A text that np.dtype reads back: "<i8", or "bfloat16" of the types that JAX adds."""
    import numpy as np

    for name in (dtype.str, dtype.name):
        with contextlib.suppress(TypeError):
            if np.dtype(name) == dtype and not dtype.hasobject:
                return name
    raise TypeError(f"{path} has dtype {dtype}: broadcast arrays of numbers, bools, text or bytes")


def _tree_from_bytes(payload: bytes) -> Any:
    import numpy as np

    start = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    skeleton = json.loads(payload[_LENGTH.size : start])
    offset = start

    def tree(node: Any) -> Any:
        nonlocal offset
        match node:
            case {"dict": items}:
                return {key: tree(item) for key, item in items.items()}
            case {"list": items}:
                return [tree(item) for item in items]
            case {"tuple": items}:
                return tuple(tree(item) for item in items)
            case {"array": [name, shape]}:
                dtype = np.dtype(name)
                count = int(np.prod(shape, dtype=np.int64))
                array = np.frombuffer(payload, dtype, count, offset).reshape(shape).copy()
                offset += array.nbytes
                return array
            case _:
                return node

    return tree(skeleton)
