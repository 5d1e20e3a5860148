"""The codec that a config names."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from xrex.data.codecs import arrow, json
from xrex.data.columns import Columns
from xrex.data.config import DatasetConfig


class Codec(Protocol):
    """Bytes to columns in two steps: a message is read when it is begun, its rows join others' in a batch."""

    def read(self, value: bytes) -> tuple[Any, tuple[str, ...]]:
        """A message's N >= 1 rows, something with a len() for `join`, and the names of the columns that nothing reads.

        Raises BadRecord: the message as a whole is lost.
        """
        ...

    def join(self, parts: Sequence[tuple[Any, int, int]]) -> pa.RecordBatch:
        """Rows start..stop of each (rows, start, stop), one after the other, in the types of `Columns.schema`.

        Raises BadRecord with the row that is to blame.
        """
        ...


def codec_of(config: DatasetConfig) -> Codec:
    """What reads the topic's messages."""
    columns = Columns(config)
    return arrow.ArrowCodec(columns) if config.codec == "arrow" else json.JsonCodec(columns)


def encoder_of(codec: str) -> Callable[[pa.RecordBatch], bytes]:
    """N >= 1 rows -> a message's value, for producers."""
    return {"arrow": arrow.encode, "json": json.encode}[codec]
