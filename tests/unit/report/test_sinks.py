import json

import numpy as np
import pytest

from xrex.errors import RunError
from xrex.report.sinks import JsonLines, drop_after


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_record_is_a_line_on_disk_before_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.append({"step": 1, "loss": 0.5})
    assert path.read_text() == '{"step":1,"loss":0.5}\n'
    sink.append({"step": 2, "topic": "Ünïcode\n"})
    sink.close()
    assert lines(path) == [{"step": 1, "loss": 0.5}, {"step": 2, "topic": "Ünïcode\n"}]


def test_numpy_numbers_are_numbers_and_what_json_lacks_is_null(tmp_path):
    sink = JsonLines(tmp_path / "m.jsonl")
    sink.append({"step": np.int64(3), "loss": np.float32("nan"), "trained": [(np.int64(0), float("inf"))]})
    assert lines(tmp_path / "m.jsonl") == [{"step": 3, "loss": None, "trained": [[0, None]]}]


def test_lines_above_the_restored_step_go_and_writing_goes_on(tmp_path):
    path = tmp_path / "journal-0.jsonl"
    sink = JsonLines(path)
    for step in (10, 20, 30):
        sink.append({"step": step})
    sink.close()
    drop_after(path, 20)
    JsonLines(path).append({"step": 25})
    assert lines(path) == [{"step": 10}, {"step": 20}, {"step": 25}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("torn", [b'{"step": 2, "lo', b'{"step": 2}', b"\x00\x00"])
def test_a_last_line_cut_short_by_a_kill_goes_too(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + torn)
    drop_after(path, 9)
    assert path.read_bytes() == b'{"step": 1}\n'


def test_without_anything_to_drop_the_file_is_left_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    drop_after(path, 5)
    assert not path.exists()
    path.write_text('{"step": 5}\n{"note": "no step"}\n')
    inode = path.stat().st_ino
    drop_after(path, 5)
    assert path.stat().st_ino == inode


@pytest.mark.parametrize("broken", ["{oops", "[1]", '{"step": null}'])
def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path, broken):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + broken + '\n{"step": 2}\n')
    with pytest.raises(RunError) as raised:
        drop_after(path, 1)
    assert (
        str(raised.value) == f"{path}, line 2 = {broken!r}: not an object with a step; remove the line and start again"
    )
