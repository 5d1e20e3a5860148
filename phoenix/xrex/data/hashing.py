"""From ids to row numbers. All must agree on each bit: tests/fixtures/hash.json holds golden values."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from xrex.schema.specs import TableSpec

_U64 = np.uint64


def splitmix64(x: np.ndarray) -> np.ndarray:
    """uint64[...] -> uint64[...], a bijection whose every output bit depends on every input bit; splitmix64(0) is
    0xE220A8397B1DCDAF. Source: Steele, Lea, Flood 2014 (one step of the generator at state x).
    """
    z = x + _U64(0x9E3779B97F4A7C15)  # array arithmetic on uint64 wraps modulo 2^64
    z ^= z >> _U64(30)
    z *= _U64(0xBF58476D1CE4E5B9)
    z ^= z >> _U64(27)
    z *= _U64(0x94D049BB133111EB)
    z ^= z >> _U64(31)
    return z


def outside_table(ids: np.ndarray, table: TableSpec) -> np.ndarray:
    """bool[...]: which int64 ids have no row of their own in a directly indexed table; with oov = row nobody owns the last."""
    return (ids < 0) | (ids >= table.num_embeddings - (table.oov == "row"))


def rows_of(ids: np.ndarray, table: TableSpec) -> np.ndarray:
    """int64[...] ids -> int32[..., K] row numbers in 0..num_embeddings-1, never wrapped.

    Raises ValueError for an id outside a directly indexed table with oov = error.
    """
    if table.salts:
        keys = ids.astype(np.int64, copy=False).view(_U64)
        rows = np.empty((*ids.shape, len(table.salts)), np.int32)
        for j, salt in enumerate(table.salts):
            rows[..., j] = splitmix64(keys ^ _U64(salt)) % _U64(table.num_embeddings)
        return rows
    return _direct_rows(ids, table).astype(np.int32)[..., None]


def _direct_rows(ids: np.ndarray, table: TableSpec) -> np.ndarray:
    outside = outside_table(ids, table)
    if not outside.any():
        return ids
    if table.oov == "hash":
        hashed = splitmix64(ids.astype(np.int64, copy=False).view(_U64)) % _U64(table.num_embeddings)
        return np.where(outside, hashed.view(np.int64), ids)
    if table.oov == "row":
        return np.where(outside, table.num_embeddings - 1, ids)
    raise ValueError(f"id {ids[outside].flat[0]} is outside table '{table.name}' (0..{table.num_embeddings - 1})")


def string_ids(values: pa.Array) -> np.ndarray:
    """string[N] -> int64[N]: xxh64 (seed 0) of the UTF-8 bytes, computed once per distinct value. A null gives 0."""
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary.cast(pa.binary()).to_pylist()
    hashes = np.fromiter((xxhash.xxh64_intdigest(value) for value in distinct), _U64, len(distinct)).view(np.int64)
    if encoded.null_count == 0:
        return hashes[encoded.indices.to_numpy()]
    ids = np.append(hashes, 0)
    return ids[pc.fill_null(encoded.indices, len(hashes)).to_numpy()]


def fingerprint(value: bytes) -> str:
    """xxh64 (seed 0) of a message's value as 16 hex digits; tells whether an offset still holds the same message."""
    return xxhash.xxh64_hexdigest(value)


def partition_of_users(user_ids: np.ndarray, num_partitions: int) -> np.ndarray:
    """int64[N] -> int64[N]: each user's Kafka partition, xxh64 (seed 0) of the id's 8 little-endian bytes mod P."""
    return (_xxh64_of_8_bytes(user_ids) % _U64(num_partitions)).astype(np.int64)


def _xxh64_of_8_bytes(ids: np.ndarray) -> np.ndarray:
    """int64[N] -> uint64[N]: what xxh64 does to an input of exactly one 8-byte lane, all ids at once."""
    p1, p2, p3 = _U64(0x9E3779B185EBCA87), _U64(0xC2B2AE3D27D4EB4F), _U64(0x165667B19E3779F9)
    p4, p5_plus_length = _U64(0x85EBCA77C2B2AE63), _U64(0x27D4EB2F165667C5 + 8)
    lane = _rotate_left(ids.astype("<i8", copy=False).view(_U64) * p2, 31) * p1
    z = _rotate_left(lane ^ p5_plus_length, 27) * p1 + p4
    z = (z ^ (z >> _U64(33))) * p2
    z = (z ^ (z >> _U64(29))) * p3
    return z ^ (z >> _U64(32))


def _rotate_left(x: np.ndarray, bits: int) -> np.ndarray:
    return (x << _U64(bits)) | (x >> _U64(64 - bits))
