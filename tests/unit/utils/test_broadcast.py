"""One process: the same calls, no JAX. Several: tests/multihost/test_broadcast_processes.py."""

import subprocess
import sys
from types import ModuleType

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
    ],
)
def test_a_wrong_environment_is_named_before_anything_starts(monkeypatch, environment, words):
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"):
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


def test_without_jaxs_store_there_is_a_warning_and_no_watchdog(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert utils._key_value_store() is None
    assert capsys.readouterr().err.startswith("warning: no watchdog with this jax (")


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
