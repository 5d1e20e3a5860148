import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xrex.errors import CheckpointError
from xrex.utils import metadata
from xrex.utils.metadata import Environment, MetadataRecorder, Run, Source, Start, atomic_write

POSITIONS = {"version": 1, "topics": [{"topic": "clicks", "topic_id": None, "partitions": {"0": {"offset": 2**60}}}]}
HERE = Environment("0.1.0+0123456789ab", {"jax": "0.12.0"}, "4 x cpu", 2)
START = Start("2026-01-01T00:00:00+00:00", "ab" * 32, POSITIONS, {"0": 2**60 + 9}, {"trainer.max_steps": 100})


def first(**changes):
    return Run.first(name="run", environment=HERE, start=START, **changes)


class Config:
    def __init__(self, text):
        self.text = text

    def to_json(self):
        return self.text


def test_a_first_run_begins_its_own_lineage():
    run = first(start_at="earliest")
    assert run.lineage_id == run.run_id != first().run_id
    assert (run.parent, run.start_at, run.starts) == (None, "earliest", (START,))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", run.created_at)


def test_a_grandchild_keeps_the_lineage_and_names_its_parent():
    grandparent = first()
    parent = Run.child_of(grandparent, "a", "/a/1", name="parent", environment=HERE, start=START)
    child = Run.child_of(
        parent, "runs/b", "/runs/b/checkpoints/9", name="c", environment=HERE, start=START, differences=({"path": "x"},)
    )
    assert child.lineage_id == grandparent.run_id
    assert dataclasses.asdict(child.parent) == {
        "checkpoint": "runs/b",
        "step_path": "/runs/b/checkpoints/9",
        "run_id": parent.run_id,
        "config": {},
    }
    assert (grandparent.generation, parent.generation, child.generation) == (0, 1, 2)
    assert child.differences == ({"path": "x"},)


def test_a_restart_adds_a_start_and_changes_nothing_that_identifies_the_run():
    run = Run.child_of(first(), "a", "/a/1", name="run", environment=HERE, start=START, start_at="latest")
    later = dataclasses.replace(START, time="2026-01-02T00:00:00+00:00", per_start={"trainer.max_steps": 200})
    elsewhere = dataclasses.replace(HERE, devices="8 x cpu", hosts=1)
    again = run.restarted(environment=elsewhere, start=later, provenance={"trainer.max_steps": "command line"})
    assert again.starts == (START, later)
    assert again.environment.devices == "8 x cpu"
    same = ("run_id", "lineage_id", "parent", "name", "created_at", "start_at")
    assert [getattr(again, name) for name in same] == [getattr(run, name) for name in same]


def test_blame_names_the_start_that_gave_a_field_its_value_over_children_and_restarts():
    production = first(provenance={"rate": "file", "steps": "default"})
    production = production.blaming(production.provenance, None, {"file": "configs/a.yaml"})
    child = Run.child_of(
        production,
        "runs/a",
        "/runs/a/1",
        name="child",
        environment=HERE,
        start=dataclasses.replace(START, time="2026-02-02T00:00:00+00:00"),
        provenance={"rate": "override", "steps": "checkpoint", "new": "default"},
    )
    child = child.blaming({"rate": "override", "new": "default"}, production, {})
    later = dataclasses.replace(START, time="2026-03-03T00:00:00+00:00")
    again = child.restarted(environment=HERE, start=later, provenance=child.provenance | {"steps": "override"})
    again = again.blaming({"steps": "override"}, child, {})
    assert {path: _who(again.source_of(path)) for path in again.provenance} == {
        "rate": (1, "child", "2026-02-02", "override", ""),
        "steps": (1, "child", "2026-03-03", "override", ""),
        "new": (1, "child", "2026-02-02", "default", ""),
    }
    assert _who(child.source_of("steps")) == (0, "run", "2026-01-01", "default", "")
    assert _who(production.source_of("rate")) == (0, "run", "2026-01-01", "file", "configs/a.yaml")
    assert Run.from_json(again.to_json()) == again


def test_a_run_json_that_kept_no_blame_counts_as_the_source_of_what_it_held():
    old = first(provenance={"rate": "file"})
    child = Run.child_of(
        old, "a", "/a/1", name="c", environment=HERE, start=START, provenance=dict.fromkeys(("rate", "x"), "checkpoint")
    )
    child = child.blaming({}, old, {})
    assert _who(child.source_of("rate")) == (0, "run", "2026-01-01", "file", "")
    assert _who(child.source_of("x")) == (0, "run", "2026-01-01", "checkpoint", "")


def _who(source):
    return source.generation, source.name, source.time[:10], source.origin, source.given


_text = st.text(max_size=20)
_starts = st.builds(
    Start,
    _text,
    _text,
    st.just(POSITIONS),
    st.none() | st.dictionaries(_text, st.integers()),
    st.just({"a": [1, None]}),
)
_runs = st.builds(
    Run,
    run_id=_text,
    lineage_id=_text,
    parent=st.none() | st.builds(metadata.Parent, _text, _text, _text),
    name=_text,
    created_at=_text,
    environment=st.builds(Environment, _text, st.dictionaries(_text, _text), _text, st.integers(1, 64)),
    starts=st.lists(_starts, max_size=2).map(tuple),
    start_at=st.none() | _text,
    provenance=st.dictionaries(_text, _text),
    differences=st.lists(st.dictionaries(_text, _text), max_size=2).map(tuple),
    generation=st.integers(0, 9),
    sources=st.lists(st.builds(Source, st.integers(0, 9), *[_text] * 6), max_size=2).map(tuple),
    blame=st.dictionaries(_text, st.integers(0, 1)),
    keep_unknown=st.booleans(),
)


@given(_runs)
def test_reading_what_was_written_gives_it_back(run):
    assert Run.from_json(run.to_json()) == run


def test_run_json_is_canonical_and_flat_where_the_contract_names_fields():
    text = first().to_json()
    document = json.loads(text)
    assert text == json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert (document["code_version"], document["hosts"], document["version"]) == ("0.1.0+0123456789ab", 2, 1)
    assert set(document) >= {"run_id", "lineage_id", "parent", "starts", "provenance", "packages", "devices"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("run_id"), "run_id"),
        (lambda d: d.pop("hosts"), "hosts is missing"),
        (lambda d: d.update(version=2), "version is not 1"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d["starts"][0].pop("positions"), "positions"),
        (lambda d: d.update(starts=3), "not a run.json"),
    ],
)
def test_a_run_json_that_is_not_ours_is_an_error_naming_file_and_field(change, says):
    document = json.loads(first().to_json())
    change(document)
    with pytest.raises(CheckpointError, match=f"^20/run.json: .*{says}"):
        Run.from_json(json.dumps(document), "20/run.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", b"\xff"])
def test_a_broken_run_json_is_an_error_naming_it(text):
    with pytest.raises(CheckpointError, match=r"^20/run\.json: "):
        Run.from_json(text, "20/run.json")


def test_what_is_recorded_is_frozen_byte_for_byte():
    recorder, config, run = MetadataRecorder(), Config('{\n  "name": "caf\u00e9"\n}\n'), first(provenance={"a": "file"})
    recorder.record_run(run, config)
    expected = {"config.json": config.text.encode(), "run.json": run.to_json().encode()}
    config.text = "changed"
    run.provenance["a"] = "changed"
    recorder.files().clear()
    assert recorder.files() == expected
    assert recorder.current_config == '{\n  "name": "caf\u00e9"\n}\n'


def test_nothing_is_written_before_something_is_recorded(tmp_path):
    recorder = MetadataRecorder()
    for use in (recorder.files, lambda: recorder.current_config, lambda: recorder.write(tmp_path)):
        with pytest.raises(RuntimeError, match="record_run"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_the_run_folder_gets_the_same_bytes(tmp_path):
    recorder = MetadataRecorder()
    recorder.record_run(first(), Config("{}\n"))
    recorder.write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == recorder.files()


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path, monkeypatch):
    (tmp_path / "run.json").write_bytes(b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "run.json", b"new")
    assert (tmp_path / "run.json").read_bytes() == b"old"


def test_the_code_version_is_a_hash_of_our_own_source(tmp_path, monkeypatch):
    assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{12}", metadata.code_version())
    for package, source in (("xrex", b"a = 1\n"), ("xai_configlib", b"b = 2\n")):
        (tmp_path / package / "utils").mkdir(parents=True)
        (tmp_path / package / "utils" / "module.py").write_bytes(source)
    monkeypatch.setattr(metadata, "__file__", str(tmp_path / "xrex" / "utils" / "module.py"))
    monkeypatch.setattr(metadata.xai_configlib, "__file__", str(tmp_path / "xai_configlib" / "__init__.py"))
    whole = hashlib.sha256()
    for name, source in (("xrex/utils/module.py", b"a = 1\n"), ("xai_configlib/utils/module.py", b"b = 2\n")):
        whole.update(name.encode() + b"\0" + hashlib.sha256(source).digest())
    before = metadata.code_version()
    assert before.endswith("+" + whole.hexdigest()[:12])
    (tmp_path / "xrex" / "utils" / "notes.txt").write_text("no source")
    assert metadata.code_version() == before
    (tmp_path / "xrex" / "utils" / "kernel.cc").write_text("int x;")
    assert metadata.code_version() != before


def test_this_environment_is_told_without_jax():
    code = "import sys; from xrex.utils.metadata import *; e = Environment.here(devices='1 x cpu', hosts=1);"
    code += "print(e.hosts, sorted(e.packages)[:3], [m for m in ('jax', 'orbax') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "1 ['flax', 'jax', 'jaxlib'] []\n"


def test_run_json_names_no_user_host_or_command_line():
    run = Run.first(name="run", environment=Environment.here(devices="1 x cpu", hosts=1), start=START)
    for told in (os.uname().nodename, sys.executable, os.path.expanduser("~")):
        assert told not in run.to_json()
