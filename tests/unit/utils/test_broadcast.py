"""One process: the same calls, no JAX. Several: tests/multihost/test_broadcast_processes.py."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xai_configlib import ConfigError
from xrex.errors import CheckpointError, OffsetLost, RunError
from xrex.utils import utils


def test_one_process_gets_back_the_very_thing_it_passed():
    thing = {"a": np.arange(3)}
    assert utils.broadcast_one_to_all(thing) is thing
    assert utils.from_process_zero(lambda: thing) is thing
    assert utils.gather_bytes(b"abc") == [b"abc"]
    utils.agree("config", "text")
    utils.raise_together(None)


@pytest.mark.parametrize("announce", [utils.broadcast_one_to_all, utils.raise_together])
def test_one_process_raises_the_error_it_announces(announce):
    error = CheckpointError("no complete step")
    with pytest.raises(CheckpointError) as raised:
        announce(error)
    assert raised.value is error


def test_one_process_never_imports_jax():
    program = """
import sys
from xrex.utils import utils
utils.start_distributed()
utils.broadcast_one_to_all(b"x"), utils.from_process_zero(dict), utils.agree("a", "b"), utils.gather_bytes(b"")
assert (utils.process_index(), utils.process_count()) == (0, 1)
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES = 'two': give a whole number from 1"),
        ({"JAX_NUM_PROCESSES": "2"}, "JAX_PROCESS_ID = '': give a whole number from 0 to 1"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID = '2': give a whole number from 0 to 1"),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "host"},
            """JAX_COORDINATOR_ADDRESS = 'host': give "HOST:PORT" of process 0""",
        ),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "host:65536"},
            """JAX_COORDINATOR_ADDRESS = 'host:65536': give "HOST:PORT" of process 0""",
        ),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "PHOENIX_JOIN_TIMEOUT_S": "0"},
            "PHOENIX_JOIN_TIMEOUT_S = '0': give a whole number from 1 to 86400",
        ),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "PHOENIX_JOIN_TIMEOUT_S": "1.5"},
            "PHOENIX_JOIN_TIMEOUT_S = '1.5': give a whole number from 1 to 86400",
        ),
    ],
)
def test_a_wrong_environment_is_named_before_anything_starts(monkeypatch, environment, words):
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS", "PHOENIX_JOIN_TIMEOUT_S"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as raised:
        utils.start_distributed()
    assert str(raised.value) == words


def test_exit_now_flushes_and_skips_every_exit_handler():
    program = """
import atexit, sys
from xrex.utils.utils import exit_now
atexit.register(lambda: print("handler"))
sys.stdout.write("said")
exit_now(7)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "said")


@pytest.fixture
def address(monkeypatch) -> str:
    """Where process 0 of these tests listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", address)
    return address


def said_by(address: str, *processes: tuple[int, int], limit_s: int = 5, before=lambda: None) -> list[str]:
    """What each of the processes (number, JAX_NUM_PROCESSES), which call in this order, says; process 0 is the first."""
    said = [""] * len(processes)

    def process(at: int, index: int, count: int) -> None:
        meet = utils._call_process_0 if index else lambda _, *how: utils._await_others(*how)
        try:
            meet(index, count, address, time.monotonic() + limit_s, limit_s)
        except (RunError, ConfigError) as error:
            said[at] = str(error)

    threads = [threading.Thread(target=process, args=(at, *who)) for at, who in enumerate(processes)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
        before()
    for thread in threads:
        thread.join()
    return said


def test_all_go_on_once_the_last_has_come(address):
    assert said_by(address, (0, 3), (2, 3), (1, 3)) == [""] * 3


def test_all_who_came_name_those_who_did_not(address):
    words = f"processes 1, 3 have not come to {address} within 1 s: see that it runs, "
    for said in said_by(address, (0, 4), (2, 4), limit_s=1):
        assert said.startswith(words)


def test_without_process_0_the_others_say_why_it_cannot_be_reached(address):
    said = said_by(address, (1, 2), limit_s=1)[0]
    assert said.startswith(
        f"process 0 has not come to {address} within 1 s ([Errno 111] Connection refused), or has given"
    )


def test_a_stranger_at_the_door_is_no_process_and_keeps_nobody_out(address):
    lines = []

    def knock():
        for hello in (b"GET / HTTP/1.1\r\n\r\n", b"xrex/join one 2", b""):
            with contextlib.suppress(OSError):
                lines.append(socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))))
                lines[-1].sendall(hello)

    assert said_by(address, (0, 2), (1, 2), limit_s=20, before=knock) == [""] * 2
    for line in lines:
        line.close()


@pytest.mark.parametrize(
    ("stray", "words"),
    [
        ((1, 3), "JAX_PROCESS_ID = 1, which has come already: give each its own"),
        ((0, 2), "process 0 cannot listen at {address} ("),
        ((2, 4), "JAX_NUM_PROCESSES = 4, process 0 has 3: give all the same"),
    ],
)
def test_a_process_that_was_started_wrongly_hears_why_and_the_others_wait_on(address, stray, words):
    said = said_by(address, (0, 3), (1, 3), stray, (2, 3))
    assert words.format(address=address) in said.pop(2)
    assert said == [""] * 3


def test_somebody_else_at_process_0s_address_is_not_taken_for_it(address):
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))) as other:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    with other.accept()[0] as line:
                        line.sendall(b"\0\0\x12\4")

        threading.Thread(target=answer, daemon=True).start()
        said = said_by(address, (1, 2), limit_s=1)[0]
        other.shutdown(socket.SHUT_RDWR)
    assert said.startswith(f"process 0 has not come to {address} within 1 s (")


class OlderStore:
    """The calls of another release of JAX."""

    def wait_at_barrier(self, barrier_id, timeout_in_ms): ...

    def key_value_set_bytes(self, key, value): ...


class OtherWords(OlderStore):
    """The same calls, and another error for a key that nobody wrote."""

    def key_value_set_bytes(self, key, value, allow_overwrite=False): ...

    def key_value_dir_get_bytes(self, key):
        return [("xrex/beats/1", b"0")]

    def blocking_key_value_get_bytes(self, key, timeout_in_ms):
        raise RuntimeError("no such key")


@pytest.mark.parametrize(
    ("private", "why"),
    [
        (None, "jax._src.distributed"),
        ({}, "cannot import name 'global_state'"),
        ({"global_state": SimpleNamespace(client=None)}, "no attribute 'key_value_set_bytes'"),
        ({"global_state": SimpleNamespace(client=OlderStore())}, "'allow_overwrite'"),
        ({"global_state": SimpleNamespace(client=OtherWords())}, "no such key"),
    ],
)
def test_with_a_jax_that_has_another_store_there_is_a_warning_and_no_watchdog(monkeypatch, capsys, private, why):
    """`private` are the names in JAX's private module; None: there is no such module."""
    name = "jax._src.distributed"
    module = None if private is None else ModuleType(name)
    if module:
        vars(module).update(private)
    monkeypatch.setitem(sys.modules, name, module)
    assert utils._key_value_store(1) is None
    warning = capsys.readouterr().err
    assert warning.startswith("warning: no watchdog with this jax (")
    assert why in warning


arrays = st.sampled_from(["<i8", ">i4", "<u8", "<f8", "<f2", "?", "<U3"]).flatmap(
    lambda dtype: st.lists(st.integers(0, 1), max_size=4).map(lambda values: np.array(values).astype(dtype))
)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | arrays
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(trees)
def test_a_tree_survives_its_bytes_with_every_type_and_dtype(tree):
    def described(node):
        if isinstance(node, np.ndarray):
            return node.dtype, node.shape, node.tobytes()
        if isinstance(node, dict):
            return {key: described(item) for key, item in node.items()}
        if isinstance(node, list | tuple):
            return type(node), [described(item) for item in node]
        return type(node), node

    assert described(utils._tree_from_bytes(utils._tree_to_bytes(tree))) == described(tree)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({1: np.zeros(1)}, "x is a dict: broadcast a Config, bytes, or a dict, list or tuple of arrays"),
        ({"a": [{1, 2}]}, "x['a'][0] is a set: broadcast a Config, bytes, or a dict, list or tuple of arrays"),
        ([np.array([None])], "x[0] has dtype object: broadcast arrays of numbers, bools, text or bytes"),
    ],
)
def test_what_cannot_travel_is_named_by_its_place(tree, words):
    with pytest.raises(TypeError) as raised:
        utils._tree_to_bytes(tree)
    assert str(raised.value) == words


class _Special(OffsetLost):
    """A subclass that the other processes may not know."""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OffsetLost("partition 3: offset 7 is gone"), OffsetLost, "partition 3: offset 7 is gone"),
        (_Special("two\nlines"), OffsetLost, "two\nlines"),
        (ConfigError("a = 1: no\nb = 2: no"), ConfigError, "a = 1: no\nb = 2: no"),
        (ZeroDivisionError("division by zero"), RunError, "process 0: ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), RunError, "process 0: KeyboardInterrupt: "),
    ],
)
def test_an_error_travels_as_its_nearest_class_of_ours_and_its_words(error, kind, words):
    copy = utils._error_from_bytes(utils._error_to_bytes(error))
    assert type(copy) is kind
    assert str(copy) == words


@given(st.integers(1, 3 * utils.CHUNK_BYTES), st.integers(0, 2))
def test_blocks_cover_the_longest_data_and_have_few_sizes(length, chunk):
    start = chunk * utils.CHUNK_BYTES
    if start < length:
        size = len(utils._block(b"", start, length))
        assert size == min(utils.CHUNK_BYTES, 2 ** int(np.ceil(np.log2(length - start))))
        assert size >= min(utils.CHUNK_BYTES, length - start)
