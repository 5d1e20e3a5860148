"""A message as one Arrow IPC stream that holds exactly one record batch: the default codec."""

from collections.abc import Sequence

import pyarrow as pa

from xrex.data.columns import Columns
from xrex.errors import BadRecord


def decode(value: bytes) -> pa.RecordBatch:
    """The record batch of N >= 1 rows, as sent: views into `value`, no copy. Raises BadRecord.

    The bytes come from outside: every offset, dictionary index and UTF-8 sequence is checked before it is followed.
    """
    try:
        with pa.ipc.open_stream(value) as stream:
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


class ArrowCodec:
    """Reads messages by the columns of a config; the rows of one are a record batch of the schema `Columns.schema`."""

    def __init__(self, columns: Columns):
        self._columns = columns

    def read(self, value: bytes) -> tuple[pa.RecordBatch, tuple[str, ...]]:
        """The rows and the names of the columns that nothing reads. Raises BadRecord."""
        rows = self._columns.check(decode(value))
        return rows, self._columns.extra

    def join(self, parts: Sequence[tuple[pa.RecordBatch, int, int]]) -> pa.RecordBatch:
        """Rows start..stop of each (rows, start, stop), one after the other."""
        slices = [rows.slice(start, stop - start) for rows, start, stop in parts]
        return slices[0] if len(slices) == 1 else pa.concat_batches(slices)
