"""Rows are built from events as data.md says: the user's strictly earlier events, oldest first, and nothing else."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrex.data.events import EventColumns, RowBuilder, bucket, build_rows, read_events
from xrex.errors import ConfigError, RunError

COLUMNS = EventColumns(
    user_columns=("age",),
    candidate_columns=("item", "genres", "price"),
    actions=("click", "like"),
    references=("reference_truth_click",),
)
SCHEMA = pa.schema(
    {
        "user": pa.int64(),
        "age": pa.int64(),
        "item": pa.int64(),
        "genres": pa.list_(pa.int64()),
        "price": pa.float64(),
        "event_time_ms": pa.int64(),
        "click": pa.int64(),
        "like": pa.int64(),
        "reference_truth_click": pa.float64(),
        "weight": pa.float64(),
    }
)
EVENT = st.fixed_dictionaries(
    {
        "user": st.integers(1, 4),
        "age": st.integers(0, 9),
        "item": st.integers(-(2**63), 2**63 - 1),
        "genres": st.lists(st.integers(0, 5), max_size=3),
        "price": st.floats(0, 10),
        "event_time_ms": st.sampled_from([0, 999, 1_000, 1_001, 7_000, 8_000, 3_600_000, 10**14]),
        "click": st.sampled_from([0, 1, None]),
        "like": st.sampled_from([0, 1, None]),
        "reference_truth_click": st.one_of(st.none(), st.floats(0, 1)),
        "weight": st.floats(0, 2, exclude_min=True),
    }
)


def slow_bucket(x: float) -> int:
    return min(math.floor(math.log2(x + 1)), 24)


def slow_rows(events: list[dict], max_history: int, skip: int = 0, history_until: int | None = None) -> list[dict]:
    rows = []
    in_time = sorted(events, key=lambda event: event["event_time_ms"])
    for event in in_time[skip:]:
        now = event["event_time_ms"]
        known = in_time[:history_until]
        earlier = [old for old in known if old["user"] == event["user"] and old["event_time_ms"] < now]
        kept = earlier[-max_history:]
        row = {name: event[name] for name in ("user", "age", "event_time_ms", "weight")}
        row["user_gap"] = slow_bucket((now - earlier[-1]["event_time_ms"]) / 1_000) if earlier else 24
        row["user_events"] = slow_bucket(len(earlier))
        for name in ("item", "genres", "price"):
            row[name] = [event[name]]
            row[f"history_{name}"] = [old[name] for old in kept]
        row["history_actions"] = [(old["click"] or 0) * 1 + (old["like"] or 0) * 2 for old in kept]
        row["history_age"] = [slow_bucket((now - old["event_time_ms"]) / 1_000) for old in kept]
        for name in ("click", "like", "reference_truth_click"):
            row[name] = [event[name]]
        rows.append(row)
    return rows


@settings(deadline=None, max_examples=150)
@given(st.lists(EVENT, max_size=12), st.integers(1, 4))
def test_rows_equal_those_of_a_plain_loop(events, max_history):
    rows = build_rows(pa.Table.from_pylist(events, SCHEMA), COLUMNS, max_history)
    assert rows.to_pylist() == slow_rows(events, max_history)


@settings(deadline=None, max_examples=100)
@given(st.lists(EVENT, max_size=12), st.integers(0, 13), st.one_of(st.none(), st.integers(0, 13)))
def test_skipped_events_are_history_and_histories_end_where_they_are_told_to(events, skip, history_until):
    table = pa.Table.from_pylist(events, SCHEMA)
    builder = RowBuilder(table, COLUMNS, 3, skip=skip, history_until=history_until)
    expected = slow_rows(events, 3, skip, history_until)
    assert builder.rows(np.arange(len(builder))).to_pylist() == expected
    assert builder.users.to_pylist() == [row["user"] for row in expected]
    assert builder.event_time_ms.tolist() == [row["event_time_ms"] for row in expected]


def example_events(**changes) -> pa.Table:
    columns = {"user": [7, 8, 7], "item": [1, 2, 3], "event_time_ms": [2_000, 1_000, 2_000], "click": [1, 0, 1]}
    return pa.table(columns | changes)


ONE_ACTION = EventColumns(actions=("click",))


def test_events_of_the_same_time_are_not_each_others_history():
    rows = build_rows(example_events(), ONE_ACTION, 5)
    assert rows["user"].to_pylist() == [8, 7, 7]
    assert rows["history_item"].to_pylist() == [[], [], []]


def test_any_choice_of_row_numbers_gives_the_same_rows():
    builder = RowBuilder(example_events(event_time_ms=[3, 2, 1]), ONE_ACTION, 5)
    whole = builder.rows(np.arange(3)).to_pylist()
    assert builder.rows(np.array([2, 0, 2])).to_pylist() == [whole[2], whole[0], whole[2]]


def test_integers_are_written_as_int64_and_categories_as_strings():
    events = example_events(user=pa.array([7, 8, 7], pa.uint16()), item=pa.array(["a", "b", "a"]).dictionary_encode())
    rows = build_rows(events, ONE_ACTION, 5)
    assert rows.schema.field("user").type == pa.int64()
    assert rows.schema.field("item").type == pa.list_(pa.string())
    assert rows.schema.field("history_actions").type == pa.list_(pa.int64())


def test_event_times_may_be_arrow_timestamps():
    times = pa.array([2_000_000, 1_000_999, 2_000_000], pa.timestamp("us", tz="UTC"))
    assert build_rows(example_events(event_time_ms=times), ONE_ACTION, 5)["event_time_ms"].to_pylist() == [
        1_000,
        2_000,
        2_000,
    ]


def test_a_parquet_file_is_read_by_the_names_of_its_columns(tmp_path):
    path = tmp_path / "events.parquet"
    file = {
        "member": [7],
        "ts": [5],
        "item": [1],
        "click": [1],
        "reference_a_click": [0.5],
        "weight": [2.0],
        "note": ["x"],
    }
    pq.write_table(pa.table(file), path)
    events, columns, unused = read_events(path, EventColumns(user="member", time="ts", actions=("click",)))
    assert unused == ("note",)
    row = build_rows(events, columns, 5).to_pylist()[0]
    assert row == {
        "member": 7, "event_time_ms": 5, "user_gap": 24, "user_events": 0, "weight": 2.0,
        "item": [1], "click": [1], "reference_a_click": [0.5], "history_item": [], "history_actions": [], "history_age": [],
    }  # fmt: skip


def test_what_is_no_parquet_or_lacks_a_column_is_refused(tmp_path):
    path = tmp_path / "events.parquet"
    with pytest.raises(ConfigError, match=r"events\.parquet: not readable as Parquet: .*; check the path$"):
        read_events(path, ONE_ACTION)
    path.write_text("user,item\n")
    with pytest.raises(ConfigError, match=r"events\.parquet: not readable as Parquet: .*; convert it to Parquet$"):
        read_events(path, ONE_ACTION)
    pq.write_table(pa.table({"user": [1]}), path)
    with pytest.raises(
        ConfigError, match="no column 'event_time_ms'; they have 'user'; name yours with --user-column, "
    ):
        read_events(path, ONE_ACTION)


def test_references_are_probabilities_and_nan_means_unknown():
    columns = EventColumns(actions=("click",), references=("reference_a_click",))
    rows = build_rows(example_events(reference_a_click=[math.nan, 1.0, None]), columns, 5)
    assert rows["reference_a_click"].to_pylist() == [[1.0], [None], [None]]
    with pytest.raises(RunError, match=r"'reference_a_click' holds 1.5: it must hold probabilities"):
        build_rows(example_events(reference_a_click=[0.0, 1.5, 1.0]), columns, 5)


def test_bucket_is_exact_at_powers_of_two_and_ends_at_24():
    assert bucket(np.array([-1, 0, 0.999, 1, 2, 3, 2**23 - 2, 2**23 - 1, 2**40])).tolist() == [
        0,
        0,
        0,
        1,
        1,
        2,
        22,
        23,
        24,
    ]


@pytest.mark.parametrize(
    ("changes", "columns", "error", "message"),
    [
        ({}, EventColumns(), ConfigError, "0 actions: name 1 to 63"),
        ({}, EventColumns(candidate_columns=(), actions=("click",)), ConfigError, "no candidate column"),
        (
            {},
            EventColumns(user="member", actions=("click",)),
            ConfigError,
            "no column 'member'; they have 'user', 'item'",
        ),
        (
            {},
            EventColumns(user_columns=("item",), actions=("click",)),
            ConfigError,
            "'item' of the rows would be written twice",
        ),
        ({"user": [7, None, 7]}, ONE_ACTION, RunError, "column 'user' holds 1 values that are null"),
        ({"item": [[1], [None], []]}, ONE_ACTION, RunError, "column 'item' holds 1 values that are null"),
        (
            {"item": [0.5, math.nan, math.inf]},
            ONE_ACTION,
            RunError,
            "column 'item' holds 2 values that are null or not finite",
        ),
        ({"weight": [1.0, None, 1.0]}, ONE_ACTION, RunError, "column 'weight' holds 1 values that are null"),
        ({"item": [[[1]], [], []]}, ONE_ACTION, ConfigError, "column 'item' is list<.*flatten it first"),
        ({"item": [{"a": 1}] * 3}, ONE_ACTION, ConfigError, "column 'item' is struct<.*convert it first"),
        (
            {"item": pa.array([2**63, 1, 2], pa.uint64())},
            ONE_ACTION,
            ConfigError,
            r"column 'item' \(uint64\) does not fit int64",
        ),
        (
            {"event_time_ms": [1.0, 2.0, 3.0]},
            ONE_ACTION,
            ConfigError,
            "'event_time_ms' is double: event times are int64",
        ),
        (
            {"event_time_ms": [1, -2, 3]},
            ONE_ACTION,
            RunError,
            "'event_time_ms' holds -2: event times are unix milliseconds",
        ),
        (
            {"user": [0.5, 1.5, 2.5]},
            ONE_ACTION,
            ConfigError,
            "user column 'user' is double: user ids are integers or str",
        ),
        ({"weight": [1.0, -0.5, 1.0]}, ONE_ACTION, RunError, "'weight' holds -0.5: a weight is above 0"),
        ({"click": [1, 0, 3]}, ONE_ACTION, RunError, r"label column 'click' holds 3.0: a label is 0, 1 or null"),
        ({"click": ["yes", "no", "no"]}, ONE_ACTION, ConfigError, "column 'click' is string: it must hold numbers"),
    ],
)
def test_events_that_make_no_rows_are_refused_by_column_and_fix(changes, columns, error, message):
    with pytest.raises(error, match=message):
        build_rows(example_events(**changes), columns, 5)
