import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from xrex.data.hashing import fingerprint, partition_of_users, rows_of, splitmix64, string_ids
from xrex.schema.specs import TableSpec

GOLDEN = json.loads((Path(__file__).parents[2] / "fixtures" / "hash.json").read_text())
INT64 = st.integers(-(2**63), 2**63 - 1)
M64 = 2**64 - 1


def splitmix64_of_python_integers(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def table(rows=1_000, **given) -> TableSpec:
    return TableSpec(name="t", num_embeddings=rows, embedding_dim=4, **given)


@given(INT64, st.integers(0, M64), st.integers(1, 2**31 - 1))
def test_a_row_is_splitmix64_of_the_id_and_the_salt_modulo_the_rows(id_, salt, rows):
    expected = splitmix64_of_python_integers((id_ & M64) ^ salt) % rows
    assert rows_of(np.array([id_], np.int64), table(rows, salts=(salt,))).tolist() == [[expected]]


def test_splitmix64_begins_with_the_published_value():
    assert splitmix64(np.zeros(1, np.uint64)).tolist() == [0xE220A8397B1DCDAF]


def test_golden_rows_of_ids_stay_what_they_are():
    for case in GOLDEN["rows"]:
        spec = table(case["num_embeddings"], salts=tuple(case["salts"]), oov=case["oov"])
        assert rows_of(np.array(case["ids"], np.int64), spec).tolist() == case["rows"]


def test_golden_strings_partitions_and_fingerprints_stay_what_they_are():
    strings = GOLDEN["strings"]
    assert string_ids(pa.array(list(strings))).tolist() == list(strings.values())
    users = GOLDEN["partitions"]
    assert partition_of_users(np.array(users["user_ids"]), users["num_partitions"]).tolist() == users["partitions"]
    assert {text: fingerprint(text.encode()) for text in GOLDEN["fingerprints"]} == GOLDEN["fingerprints"]


def test_ids_that_differ_only_above_32_bits_have_different_rows():
    rows = rows_of(np.array([5, 4_294_967_301], np.int64), table())
    assert rows[0].tolist() != rows[1].tolist()


def test_every_axis_of_the_ids_is_kept_and_hashes_come_last():
    ids = np.arange(6).reshape(2, 3)
    rows = rows_of(ids, table(salts=(1, 2)))
    assert rows.shape == (2, 3, 2)
    assert rows.dtype == np.int32
    assert rows[1, 2].tolist() == rows_of(ids[1, 2:], table(salts=(1, 2)))[0].tolist()


OUTSIDE = np.array([-1, 1_000, 2**31, -(2**63)], np.int64)


def test_an_id_outside_a_directly_indexed_table_never_wraps():
    inside = np.array([0, 999], np.int64)
    assert rows_of(inside, table(salts=())).tolist() == [[0], [999]]
    with pytest.raises(ValueError, match=r"id -1 is outside table 't' \(0..999\)"):
        rows_of(OUTSIDE, table(salts=()))
    assert rows_of(OUTSIDE, table(salts=(), oov="row")).tolist() == [[999]] * 4
    hashed = [[splitmix64_of_python_integers(int(i) & M64) % 1_000] for i in OUTSIDE]
    assert rows_of(OUTSIDE, table(salts=(), oov="hash")).tolist() == hashed


@given(st.lists(INT64, max_size=20), st.integers(1, 1_000))
def test_a_users_partition_is_xxh64_of_its_little_endian_bytes(user_ids, num_partitions):
    expected = [xxhash.xxh64_intdigest(i.to_bytes(8, "little", signed=True)) % num_partitions for i in user_ids]
    assert partition_of_users(np.array(user_ids, np.int64), num_partitions).tolist() == expected


@given(st.lists(st.none() | st.text(max_size=5), max_size=30), st.integers(0, 5))
def test_a_string_id_is_xxh64_of_its_utf8_bytes_and_null_is_0(values, start):
    expected = [0 if v is None else int.from_bytes(xxhash.xxh64_digest(v.encode()), "big") for v in values[start:]]
    ids = string_ids(pa.array(values, pa.string()).slice(start))
    assert ids.view(np.uint64).tolist() == expected
