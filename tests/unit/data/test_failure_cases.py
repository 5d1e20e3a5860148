"""The failure cases that concern data: logs of the cases' shape, four rows a batch, one process."""

import numpy as np
import pytest
from memory_log import MemoryLog, event, message, small_config

from xrex.data.batching import Batcher
from xrex.data.dataset import check_positions, start_positions
from xrex.data.prefetch import Stream
from xrex.errors import BadRecord
from xrex.schema.batch import Delivery
from xrex.schema.positions import TopicPositions
from xrex.schema.specs import TableSpec


def train(config, log, positions=None) -> list[Delivery]:
    """Every delivery with rows, up to the fixed end."""
    positions = positions or start_positions(config, log=log).partitions
    batcher = Batcher(config, log, positions, 4)
    found = [batcher.next()]
    while found[-1].more:
        found.append(batcher.next())
    return [delivery for delivery in found if delivery.rows]


def offsets(found: list[Delivery]) -> list[int]:
    return [span.offset for delivery in found for span in delivery.trained]


def test_a_commit_marker_at_the_end_is_passed():
    log = MemoryLog([event(o) for o in range(8)], ends={0: 9})
    found = train(small_config(), log)
    assert [d.rows for d in found] == [4, 4]
    assert not found[-1].more
    assert found[-1].next_positions[0].offset == 9
    assert train(small_config(), log, found[-1].next_positions) == []


OFFSETS_WITH_HOLES = [3, 4, 9, 10, 15, 27, 28, 40]


def test_holes_are_passed():
    log = MemoryLog([event(o) for o in OFFSETS_WITH_HOLES], ends={0: 44})
    found = train(small_config(), log)
    assert offsets(found) == OFFSETS_WITH_HOLES
    assert [d.rows for d in found] == [4, 4]
    assert 11 <= found[0].next_positions[0].offset <= 15
    assert offsets(train(small_config(), log, found[0].next_positions)) == [15, 27, 28, 40]
    assert 41 <= found[-1].next_positions[0].offset <= 44


def test_tombstones_are_skipped_and_counted_and_are_no_rows():
    log = MemoryLog([message(o, None) if o in (3, 6) else event(o) for o in range(10)])
    found = train(small_config(), log)
    assert offsets(found) == [0, 1, 2, 4, 5, 7, 8, 9]
    assert [d.rows for d in found] == [4, 4]
    assert [d.skipped for d in found] == [{"tombstone": 1}, {"tombstone": 1}]
    assert found[-1].next_positions[0].offset == 10


def b07_log() -> MemoryLog:
    records = [event(o) for o in range(10)]
    records[2] = message(2, bytes.fromhex("fffe006e6f742d616e2d6576656e74"))
    records[5] = message(5, b'{"user_id": "abc", "label": 1}')
    return MemoryLog(records)


def test_an_undecodable_record_ends_the_run_and_is_named_each_time():
    for _ in range(2):
        with pytest.raises(BadRecord) as raised:
            train(small_config(), b07_log())
        assert str(raised.value).startswith(
            "topic 'engagements' partition 0 offset 2: not JSON: 'utf-8' codec can't decode"
        )
        assert str(raised.value).endswith("the value begins fffe006e6f742d61")


def test_a_record_of_wrong_types_is_named_with_its_row():
    log = b07_log()
    positions = check_positions(
        small_config(),
        TopicPositions("engagements", log.topic_id, start_positions(small_config(), log=log).partitions),
        log=log,
    ).topic
    log.records[0][2] = event(2)
    with pytest.raises(BadRecord, match="partition 0 offset 5: the column 'author_id' is missing"):
        train(small_config(), log, positions.partitions)
    log.records[0][5] = event(5, user_id="abc")
    with pytest.raises(BadRecord, match="offset 5 row 0: column 'user_id': expected an integer, got a string"):
        train(small_config(), log, positions.partitions)


def b08_log(**given) -> MemoryLog:
    records = [event(o) for o in range(8)]
    return MemoryLog([*records, event(0, 2, user_id=190, item_id=41)], partitions=3, **given)


def test_a_finite_read_does_not_wait_for_quiet_partitions():
    found = train(small_config(num_kafka_partitions=3), b08_log())
    assert [d.rows for d in found] == [4, 4, 1]
    assert found[-1].batch.weight.tolist() == [1, 0, 0, 0]
    assert {p: q.offset for p, q in found[-1].next_positions.items()} == {0: 8, 1: 0, 2: 1}


def test_read_ahead_does_not_move_the_position():
    log = MemoryLog([event(o) for o in range(100)], chunk=lambda: 50)
    config = small_config(prefetch_batches=1_000)
    positions = start_positions(config, log=log).partitions
    stream = Stream(config, positions=positions, partitions=[0], rows=4, log=log)
    first = [stream.next() for _ in range(5)]
    stream.close()
    assert first[-1].next_positions[0].offset == 20
    rest = train(config, MemoryLog([event(o) for o in range(100)]), first[-1].next_positions)
    assert len(rest) == 20
    assert offsets(first + rest) == list(range(100))


def test_ids_that_differ_above_32_bits_have_different_rows():
    item = [5, 4_294_967_301, 4_294_967_301, 5]
    log = MemoryLog([event(o, item_id=i, label=int(i == 5)) for o, i in enumerate(item)])
    rows = train(small_config(), log)[0].batch.candidates["item"][:, 0]
    assert rows[0].tolist() == rows[3].tolist()
    assert rows[0].tolist() != rows[1].tolist() == rows[2].tolist()


IDS = [-1, 1_000, 2_147_483_648, -9_223_372_036_854_775_808, 1, 2, 3, 4]


def ids_outside_a_direct_table(oov) -> tuple:
    tables = [TableSpec(name="items", num_embeddings=1_000, embedding_dim=4, salts=(), oov=oov)]
    tables += [TableSpec(name=name, num_embeddings=500, embedding_dim=4) for name in ("users", "authors")]
    log = MemoryLog([event(o, item_id=i, history=[1]) for o, i in enumerate(IDS)])
    return small_config(tables=tuple(tables)), log


def test_an_id_outside_a_direct_table_ends_the_run_naming_feature_value_and_offset():
    config, log = ids_outside_a_direct_table("error")
    with pytest.raises(BadRecord) as raised:
        train(config, log)
    assert str(raised.value) == (
        "topic 'engagements' partition 0 offset 0 row 0: feature 'item' (column 'item_id'): "
        "id -1 is outside the directly indexed table 'items' (0..999)"
    )


def test_with_an_oov_row_the_hits_are_counted_and_other_ids_keep_theirs():
    config, log = ids_outside_a_direct_table("row")
    found = train(config, log)
    assert [d.noted for d in found] == [{"oov.item": 4}, {}]
    assert np.concatenate([d.batch.candidates["item"][:, 0, 0] for d in found]).tolist() == [999] * 4 + [1, 2, 3, 4]


def test_empty_histories_are_all_padding():
    log = MemoryLog([event(o, history=[3] if o % 2 else []) for o in range(8)])
    for delivery in train(small_config(), log):
        assert delivery.batch.history_length.tolist() == [0, 1, 0, 1]
        assert (delivery.batch.history["seen"][::2] == -1).all()
        assert (delivery.batch.history["seen"][1::2, 0] >= 0).all()


def test_a_batch_of_empty_histories_only_is_a_batch():
    log = MemoryLog([event(o, history=[]) for o in range(4)])
    (delivery,) = train(small_config(), log)
    assert delivery.batch.history_length.tolist() == [0, 0, 0, 0]
    assert (delivery.batch.history["seen"] == -1).all()


def test_extra_columns_are_counted_once_a_message():
    log = MemoryLog([event(o, colour="red") for o in range(8)])
    assert [d.noted for d in train(small_config(), log)] == [{"extra_column.colour": 4}] * 2
