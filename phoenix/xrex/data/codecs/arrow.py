"""A message as one Arrow IPC stream that holds exactly one record batch: the default codec."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from xrex.data.columns import Columns, Plan
from xrex.errors import BadRecord


def decode(value: bytes) -> pa.RecordBatch:
    """The record batch of N >= 1 rows, as sent: views into `value`, no copy. Raises BadRecord.

    The bytes come from outside: every offset, dictionary index and UTF-8 sequence is checked before it is followed.
    """
    try:
        with pa.RecordBatchStreamReader(pa.py_buffer(value)) as stream:
            batches = list(stream)
        if len(batches) != 1:
            raise BadRecord(f"an Arrow stream of {len(batches)} record batches, expected exactly 1")
        batches[0].validate(full=True)
    except MemoryError:  # also ArrowMemoryError: the machine's fault, not the message's
        raise
    except (pa.ArrowException, OSError) as error:
        raise BadRecord(f"not an Arrow IPC stream: {error}") from None
    if batches[0].num_rows == 0:
        raise BadRecord("a record batch of 0 rows, expected at least 1")
    return batches[0]


def encode(batch: pa.RecordBatch) -> bytes:
    """One IPC stream that holds this batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """The rows of one message, as they were sent, and how they become columns of a config."""

    batch: pa.RecordBatch
    plan: Plan

    def __len__(self) -> int:
        return self.batch.num_rows


class ArrowCodec:
    """Reads messages by the columns of a config.

    Columns are brought to their types for all rows of a batch at once: for each message it would cost ten times more.
    """

    def __init__(self, columns: Columns):
        self._columns = columns

    def read(self, value: bytes) -> tuple[Rows, tuple[str, ...]]:
        """The rows and the names of the columns that nothing reads. Raises BadRecord."""
        batch = decode(value)
        try:
            plan = self._columns.plan(batch.schema)
        except UnicodeDecodeError as error:
            raise BadRecord(f"the name of a column is not UTF-8: {error}") from None
        return Rows(batch, plan), plan.extra

    def join(self, parts: Sequence[tuple[Rows, int, int]]) -> pa.RecordBatch:
        """Rows start..stop of each (rows, start, stop), one after the other. Raises BadRecord with a row."""
        joined, before = [], 0
        for plan, alike in _runs_of_one_plan(parts):
            try:
                joined.append(self._columns.check(alike, plan))
            except BadRecord as error:
                raise BadRecord(str(error), None if error.row is None else before + error.row) from None
            before += len(alike)
        return joined[0] if len(joined) == 1 else pa.concat_batches(joined)


def _runs_of_one_plan(parts: Sequence[tuple[Rows, int, int]]) -> Iterator[tuple[Plan, pa.RecordBatch]]:
    plan, run = parts[0][0].plan, []
    for rows, start, stop in parts:
        if run and (rows.plan is not plan or plan.has_dictionaries):
            yield plan, run[0] if len(run) == 1 else pa.concat_batches(run)
            run = []
        plan = rows.plan
        run.append(rows.batch if stop - start == len(rows) else rows.batch.slice(start, stop - start))
    yield plan, run[0] if len(run) == 1 else pa.concat_batches(run)
