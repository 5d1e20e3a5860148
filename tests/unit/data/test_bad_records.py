"""What cannot be trained: the first bad record ends a run, unless a number of them may be passed over."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_log import MemoryLog, event, message, small_config

from xrex.data.batching import Batcher
from xrex.data.codecs import arrow
from xrex.data.dataset import start_positions
from xrex.errors import BadRecord, RunError
from xrex.schema.batch import BadRow
from xrex.schema.dead_letters import DeadLetter, from_line, to_line

UNREADABLE = bytes.fromhex("fffe006e6f742d616e2d6576656e74")


def rows_message(offset: int, *bad_rows: int, rows: int = 5):
    """A message of several rows, of which some hold a user id of the wrong type."""
    values = [json.loads(event(10 * offset + i).value or b"") for i in range(rows)]
    for row in bad_rows:
        values[row]["user_id"] = "abc"
    return message(offset, json.dumps(values).encode())


def deliveries(log, limit, positions=None, bad_before=0, **changes):
    """Everything up to the fixed end."""
    config = small_config(skip_bad_records=limit, **changes)
    positions = positions or start_positions(config, log=log).partitions
    batcher = Batcher(config, log, positions, 4, bad_before=bad_before)
    found = [batcher.next()]
    while found[-1].more:
        found.append(batcher.next())
    return found


def trained(found):
    return [(s.offset, s.first_row + i) for d in found for s in d.trained for i in range(s.rows)]


def passed_over(found):
    return [(bad.offset, bad.row) for d in found for bad in d.bad]


def two_bad_of_ten():
    records = [event(o) for o in range(10)]
    records[2] = message(2, UNREADABLE)
    records[5] = event(5, user_id="abc")
    return MemoryLog(records)


def test_as_many_as_allowed_are_passed_over_and_told_with_place_and_reason():
    found = deliveries(two_bad_of_ten(), limit=2)
    assert [offset for offset, _ in trained(found)] == [0, 1, 3, 4, 6, 7, 8, 9]
    assert passed_over(found) == [(2, None), (5, 0)]
    first, second = (bad for d in found for bad in d.bad)
    assert first.reason.startswith("topic 'engagements' partition 0 offset 2: not JSON")
    assert first.reason.endswith("the value begins fffe006e6f742d61")
    assert first.value == UNREADABLE
    assert second.reason == (
        "topic 'engagements' partition 0 offset 5 row 0: column 'user_id': expected an integer, got a string"
    )
    assert sum(d.skipped.get("bad_record", 0) for d in found) == 2
    assert found[-1].next_positions[0].offset == 10


def test_the_next_one_ends_the_run():
    with pytest.raises(
        BadRecord, match=r"offset 5 row 0: column 'user_id': .*; 1 bad records were passed over before it"
    ):
        deliveries(two_bad_of_ten(), limit=1)


def test_those_before_a_restart_count():
    with pytest.raises(BadRecord, match="offset 5 row 0"):
        deliveries(two_bad_of_ten(), limit=2, bad_before=1)


def test_a_limit_below_what_was_passed_over_before_allows_none(capsys):
    with pytest.raises(BadRecord, match=r"5 bad records were passed over before it, dataset\.skip_bad_records = 3"):
        deliveries(two_bad_of_ten(), limit=3, bad_before=5)


def test_a_column_whose_name_is_no_text_makes_a_bad_record():
    row = json.loads(event(0).value or b"") | {"zzzz": 1}
    value = arrow.encode(pa.RecordBatch.from_pylist([row])).replace(b"zzzz", b"\xff\xff\xff\xff")
    with pytest.raises(BadRecord, match="offset 0: the name of a column is not UTF-8"):
        deliveries(MemoryLog([message(0, value)]), limit=0, codec="arrow")


def test_a_bad_row_leaves_the_others_of_its_message():
    found = deliveries(MemoryLog([rows_message(0), rows_message(1, 0, 3), rows_message(2, 4)]), limit=9)
    assert passed_over(found) == [(1, 0), (1, 3), (2, 4)]
    good = {(o, r) for o in range(3) for r in range(5)} - {(1, 0), (1, 3), (2, 4)}
    assert sorted(trained(found)) == sorted(good)
    assert [d.rows for d in found] == [4, 3, 3, 2]
    assert found[1].batch.weight.tolist() == [1, 1, 1, 0]


def test_a_batch_of_bad_rows_alone_has_no_rows_and_the_stream_goes_on():
    found = deliveries(MemoryLog([rows_message(0, 0, 1, 2, 3), rows_message(1)]), limit=4)
    assert (found[0].rows, found[0].trained, found[0].more) == (0, (), True)
    assert trained(found) == [(0, 4), *((1, row) for row in range(5))]


def test_nothing_but_bad_records_is_an_error_and_no_idle_run():
    with pytest.raises(BadRecord, match="3 bad records were passed over before it"):
        deliveries(MemoryLog([message(o, UNREADABLE) for o in range(100)]), limit=3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.none() | st.sets(st.integers(0, 4), max_size=5), min_size=1, max_size=8),
    st.integers(0, 8),
)
def test_wherever_a_run_resumes_it_trains_and_passes_over_what_an_unbroken_one_does(messages, resumed_at):
    """Each message is unreadable (None) or holds a set of bad rows."""

    def log():
        return MemoryLog(
            [message(o, UNREADABLE) if bad is None else rows_message(o, *bad) for o, bad in enumerate(messages)]
        )

    whole = deliveries(log(), limit=50)
    cut = min(resumed_at, len(whole) - 1)
    before, position = whole[:cut], whole[cut - 1].next_positions if cut else None
    rest = deliveries(log(), limit=50, positions=position)
    assert trained(before + rest) == trained(whole)
    assert passed_over(before + rest) == passed_over(whole)
    bad = {(o, None) for o, rows in enumerate(messages) if rows is None}
    bad |= {(o, row) for o, rows in enumerate(messages) for row in rows or ()}
    assert set(passed_over(whole)) == bad
    assert len(trained(whole)) == sum(5 - len(rows) for rows in messages if rows is not None)


def test_a_dead_letter_holds_the_whole_record():
    bad = BadRow(3, 2**40, 7, 1_700_000_000_000, b"\x00k", UNREADABLE, "topic 't' partition 3: why")
    letter = DeadLetter(12, "t", bad)
    assert from_line(json.dumps(to_line(letter)), "x:1") == letter
    without_key = letter._replace(bad=bad._replace(key=None, row=None))
    assert from_line(json.dumps(to_line(without_key)), "x:1") == without_key


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"step": 1}', '{"step": 1, "topic": "t", "key": "?", "value": ""}'])
def test_a_broken_line_of_dead_letters_is_named(line):
    with pytest.raises(RunError, match=r"^dead-letters-0\.jsonl:3: not a line of dead letters"):
        from_line(line, "dead-letters-0.jsonl:3")
