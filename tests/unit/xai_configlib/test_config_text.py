"""Each fault of a text is one clear line; JSON and YAML give the same mapping."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_configs import SampleRun, base

from xai_configlib import ConfigError, load_text

UNREADABLE = "cannot be read; correct it, or write it in quotes"


def fault_of(text):
    with pytest.raises(ConfigError) as caught:
        load_text(text, "f.json")
    (line,) = str(caught.value).splitlines()
    assert line.startswith("f.json: ")
    return line.removeprefix("f.json: ")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "is empty: write the config into it, or check the path"),
        (b"\xef\xbb\xbf \n", "is empty: write the config into it, or check the path"),
        ('{"a": 1}'.encode("utf-16"), "is UTF-16: save it as UTF-8"),
        ('{"a": 1}'.encode("utf-16-le"), "holds NUL characters, is it UTF-16? Save it as UTF-8"),
        (b'{"a": "\xff"}', "is not UTF-8 at byte 7: save it as UTF-8"),
        (b'{"a": 1,', "the text is cut short at line 1 column 9"),
        (b'{"a": ', "the text is cut short at line 1 column 7"),
        (b'{"a": 1}\n}', "not JSON, extra data at line 2 column 1"),
        (b'{"a": 1,}', "not JSON, illegal trailing comma before end of object at line 1 column 8"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' stands twice in one object"),
        (b'{"a": NaN}', "NaN is not JSON: NaN is no value"),
        (b'{"a": -Infinity}', '-Infinity is not JSON: write "-Infinity" in quotes'),
        (
            b'{"a": 1e999}',
            "'1e999' is too large for a 64-bit float: write \"Infinity\" in quotes, or correct the exponent",
        ),
        (
            b'{"a": -1e999}',
            "'-1e999' is too large for a 64-bit float: write \"-Infinity\" in quotes, or correct the exponent",
        ),
        (b'{"a":\n ' + b"9" * 5000 + b"}", "an integer has too many digits at line 2 column 2: correct it"),
        (b'{"a": ' + b"[" * 200_000, "is nested too deep, or too large to read; is this a config?"),
        (b"a: " + b"[" * 20_000, "is nested too deep, or too large to read; is this a config?"),
        (b"[1, 2]", "expected an object of sections at the top level, found a list"),
        (b'"a"', "expected an object of sections at the top level, found a string"),
        (b"# nothing", "expected an object of sections at the top level, found null"),
        (b"a: 1\nb: 2\na: 3\n", "the key 'a' stands twice at line 3 column 1"),
        (b"a: [1, 2", "not YAML, expected ',' or ']', but got '<stream end>' at line 1 column 9"),
        (b"- a\nb: 1", "not YAML, expected <block end>, but found '?' at line 2 column 1"),
        (b"%A\na: 1", "not YAML, expected '<document start>', but found ('<scalar>',) at line 2 column 1"),
        (b"a: *hunter", "not YAML, found undefined alias … at line 1 column 4"),
        (b"a: 2024-01-01\n", "'a' is a date: write the text in quotes"),
        (b"a: .nan\n", '\'a\' is not a finite number: write "Infinity" or "-Infinity" in quotes'),
        (
            b"a: !!python/object/apply:os.getcwd []\n",
            "not YAML, could not determine a constructor for the tag … at line 1 column 4",
        ),
        (b"a: 1\n---\nb: 2\n", "not YAML, but found another document at line 2 column 1"),
        (b"a: 1\nb: \x07", "not YAML: the character at line 2 column 4 cannot be read; remove it"),
        (b"a: [1,\n !!int x]", f"not YAML: the value at line 2 column 2 {UNREADABLE}"),
        (b"a: 1\nb: {c: 2001-01-01 25:00:00}", f"not YAML: the value at line 2 column 8 {UNREADABLE}"),
        (b"a: " + b"9" * 5000, f"not YAML: the value at line 1 column 4 {UNREADABLE}"),
        (b"a: " + b"x" * 1_000_000, "is YAML of more than 1 MB: write it as JSON"),
    ],
)
def test_a_faulty_text_is_one_line(text, fault):
    found = fault_of(text)
    if fault.startswith("not JSON, illegal trailing comma") and sys.version_info < (3, 13):
        fault = "not JSON, expecting property name enclosed in double quotes at line 1 column 9"
    assert found == fault


def test_aliases_of_aliases_do_not_fill_the_memory():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert fault_of("\n".join(lines)) == "stands for too many values: write it without aliases"


@pytest.mark.parametrize(
    "text",
    [
        'password: "hunter2\n',
        "password: *hunter2\n",
        "password: !hunter2 x\n",
        "password: hunter2\npassword: hunter2\n",
        '{"password": "hunter2" "x"}',
        "password: `hunter2\n",
        "password: !!int hunter2\n",
        "password: '<hunter2>' '<scalar>'\n",
        "%hunter2\na: 1\n",
    ],
)
def test_a_fault_never_echoes_the_text(text):
    assert "hunter2" not in fault_of(text)


def test_a_byte_order_mark_is_accepted_and_not_written():
    text = json.dumps({**base(), "run_name": "café-ranker"}, ensure_ascii=False)
    run = SampleRun.from_json(b"\xef\xbb\xbf" + text.encode())
    assert run.run_name == "café-ranker"
    assert run == SampleRun.from_json(text) == SampleRun.from_json("\ufeff" + text)
    assert run.to_json().startswith("{")


def test_yaml_gives_what_json_gives():
    text = """
# a comment
rate: 3e-4
steps: 1_000
name: "2024-01-01"
word: yes
flag: true
nothing: null
salt: 18446744073709551615
nested: {list: [1, 2.0, -0.0]}
"""
    assert load_text(text, "f.yaml") == {
        "rate": 3e-4,
        "steps": 1000,
        "name": "2024-01-01",
        "word": "yes",
        "flag": True,
        "nothing": None,
        "salt": 2**64 - 1,
        "nested": {"list": [1, 2.0, -0.0]},
    }
    assert SampleRun.from_json(json.dumps(base())) == SampleRun.from_json(_as_yaml(base()))


def _as_yaml(value, indent=""):
    lines = []
    for key, item in value.items():
        block = isinstance(item, dict) and item
        lines.append(f"{indent}{key}:" + ("" if block else f" {json.dumps(item)}"))
        lines += [_as_yaml(item, indent + "  ")] if block else []
    return "\n".join(lines)


def test_importing_the_library_and_reading_json_is_quick_and_loads_no_yaml():
    code = "import sys, xai_configlib; xai_configlib.load_text('{}', ''); print([m for m in ('ruamel.yaml', 'jax', 'numpy') if m in sys.modules])"
    root = Path(__file__).parents[3] / "phoenix"
    environment = {"PYTHONPATH": str(root), "LC_ALL": "C", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
