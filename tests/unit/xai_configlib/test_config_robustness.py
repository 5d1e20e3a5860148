"""Whatever a file holds, reading it ends in a config or in a ConfigError, soon, and runs nothing."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_configs import SampleRun, base
from test_config_types import ManyTypes

from xai_configlib import Config, ConfigError, configclass, field, load_text
from xrex.train.config import TrainerConfig

QUICKSTART = (Path(__file__).parents[3] / "configs" / "quickstart.yaml").read_bytes()
EXECUTED = {
    "import",
    "exec",
    "compile",
    "open",
    "os.system",
    "os.exec",
    "subprocess.Popen",
    "socket.connect",
    "ctypes.dlopen",
}
LIMIT_S = 1.0
FIX = "is this a config?"

seen: list[str] = []
watching = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and event in EXECUTED:
        seen.append(f"{event} {arguments[:1]}")


sys.addaudithook(_watch)


def outcome(cls: type[Config], text: bytes, unknown: Any = "error") -> Config | str:
    """The config, or the error's lines; fails if anything ran, took long or raised something else."""
    global watching
    seen.clear()
    started, watching = time.process_time(), True  # not the wall clock: other tests may run beside this one
    try:
        result: Config | str = cls.from_json(text, source="f", unknown=unknown, say=str)
    except ConfigError as error:
        result = str(error)
    finally:
        watching = False
    assert time.process_time() - started < LIMIT_S
    assert seen == []
    return result


def check(cls: type[Config], text: bytes) -> None:
    for unknown in ("error", "keep"):
        result = outcome(cls, text, unknown)
        if isinstance(result, Config):
            assert Config.from_json(result.to_json().encode(), unknown="keep", say=str) == result
        else:
            lines = result.splitlines()
            assert all(line.startswith("f: ") and line.isprintable() and len(line) < 3_000 for line in lines)


CANONICAL = SampleRun.from_json(base()).to_json().encode()
TYPES = ManyTypes(by_phase={"test": 1}, node_or_list=(1, 2), ids=frozenset({1, 2}), key=b"key").to_json().encode()  # type: ignore[arg-type]
FILES = [(SampleRun, CANONICAL), (ManyTypes, TYPES), (TrainerConfig, QUICKSTART)]
load_text(b"a: 1", "f")  # ruamel.yaml is imported at its first use


@st.composite
def mutated_bytes(draw):
    """A valid file with one byte replaced, inserted or removed, or cut short."""
    cls, text = draw(st.sampled_from(FILES))
    at = draw(st.integers(0, len(text) - 1))
    byte = draw(
        st.binary(min_size=1, max_size=1) | st.sampled_from([bytes([c]) for c in b"{}[],:\"'\\-#&*!|>%@`?.e0\0\t\n "])
    )
    return cls, draw(
        st.sampled_from(
            [text[:at] + byte + text[at + 1 :], text[:at] + byte + text[at:], text[:at] + text[at + 1 :], text[:at]]
        )
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from(["SampleRun", "os.system", "Infinity", "NaN", "\ud800", "__class", 2**64, 10**400, -0.0, "a" * 10_000]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4) | st.sampled_from(["__class", "__version", "env", "[key]"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def mutated_values(draw):
    """A valid file with one value, at any depth, replaced by any other, or one key renamed."""
    cls, text = draw(st.sampled_from(FILES))
    mapping = load_text(text, "f")
    node, key = draw(st.sampled_from(list(_places(mapping))))
    if isinstance(node, dict) and draw(st.integers(0, 4)) == 0:
        node[draw(st.text(max_size=4) | st.sampled_from(["__class", "__version", "\ud800"]))] = node.pop(key)
    else:
        node[key] = draw(values)
    return cls, json.dumps(mapping).encode()


def _places(node):
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


quick = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
thorough = settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))


@given(mutated_bytes())
@quick
def test_one_byte_more_less_or_other_is_a_config_or_a_config_error(file):
    check(*file)


@given(mutated_values())
@quick
def test_one_value_or_key_of_another_kind_is_a_config_or_a_config_error(file):
    check(*file)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(mutated_bytes())
@thorough
def test_thousands_of_bytes_are_a_config_or_a_config_error(file):
    check(*file)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(mutated_values())
@thorough
def test_thousands_of_values_are_a_config_or_a_config_error(file):
    check(*file)


@given(st.binary(max_size=60) | st.text(st.sampled_from("{}[]:,-?&*!|>'\"%@#a1 \n\t."), max_size=30).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_config_or_a_config_error(data):
    check(SampleRun, data)


@configclass(policy="own")
class Nest(Config):
    """Base of what nests in itself."""


@configclass(policy="own")
class Nested(Nest):
    below: tuple[Nest, ...] = field(default=())
    """The same again."""


def test_a_class_that_nests_in_itself_without_end_is_a_config_error():
    assert isinstance(outcome(Nested, b'{"below": [{"below": []}]}'), Nested)
    for depth in (50, 5_000):
        text = '{"below": [' * depth + "{}" + "]}" * depth
        result = outcome(Nested, text.encode())
        assert (
            isinstance(result, Nested)
            if depth == 50
            else result == f"f: is nested too deep, or too large to read; {FIX}"
        )
    mapping: dict[str, Any] = {}
    for _ in range(1_000):
        mapping = {"below": [mapping]}
    with pytest.raises(ConfigError, match=rf"^config: is nested too deep to read; {re.escape(FIX)}$"):
        Nested.from_json(mapping)


@pytest.mark.parametrize(
    "text",
    [
        "a: !!bool maybe", "a: !!int x", "a: !!int ''", "a: !!float ''", "a: !!float 0x", "a: !!binary é", "a: !!timestamp x",
        "a: !!null x", "a: !!set {x}", "a: !!omap [x]", "a: !!pairs x", "a: !!seq x", "a: !!map x", "a: !!str {}", "!!python/name:os.system ''",
        "a: !!python/object/new:os.system [ls]", "? [1, 2]\n: 3", "? {a: 1}\n: 3", "&a [*a]", "&a {b: *a}", "<<: 3", "<<: [3]", "<<: *x",
        "%YAML 9.9\n---\na: 1", "%TAG ! x\n---\na: !y 1", "a: 1_", "a: 0o9", "a: 1:99:99", "a: 0b2", "a: 9999-99-99", "a: 2001-01-01 25:00:00",
        "a: \"\\ud800\"", "a: \"\\x\"", "a: \"\\U99999999\"", "- a\n- b", "--- \n...\n---", "a: |\n b\n  c\n d", "a: >9\n b", "\ta: 1", "a:\n\tb: 1",
        "{a: 1, a: 2}", "{a: [}", "[" * 500, "{a: " * 500, "a: &x &y z", "a: 1e999", "a: 1e-999", "a: .inf", "a: " + "9" * 5000, "~: 1", "1: 2", "1.5: 2", "true: 1",
    ],
)  # fmt: skip
def test_any_feature_of_yaml_is_a_config_or_a_config_error(text):
    check(SampleRun, text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "{" + ", ".join(f'"k{n}": 1' for n in range(20_000)) + ', "k19999": 1}',
        '{"a": ' + "[" * 100_000,
        '{"a": ' + "[" * 900 + "]" * 900 + "}",
        '{"a": ' + '{"a": ' * 900 + "1" + "}" * 901,
        '{"dataset": {"batch_size": [' + "1, " * 300_000 + "1]}}",
        '{"seed": "' + "a" * 3_000_000 + '"}',
        '{"' + "a" * 1_000_000 + '": 1}',
        '{"dataset": {"source": {"__class": "' + "a" * 1_000_000 + '"}}}',
        '{"__class": [' + "[" * 500 + "]" * 501 + "}",
        '{"model": {"activation": [' + "[" * 500 + "]" * 501 + "}}",
        '{"seed": ' + "9" * 4_300 + "}",
        '{"seed": 1' + " " * 3_000_000,
        '{"a": 1e' + "9" * 100_000 + "}",
        "{" + "\n" * 3_000_000,
        "a: &a [x]\nb: [" + "*a, " * 2_000 + "*b]",
    ],
)  # fmt: skip
def test_a_large_fault_is_found_within_a_second(text):
    data = text.encode()
    result = outcome(SampleRun, data)
    assert isinstance(result, str)
    assert all(line.startswith("f: ") and len(line) < 500 for line in result.splitlines())
