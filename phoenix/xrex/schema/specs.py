"""What a table and a feature are: nouns that data (ids -> row numbers) and models (row numbers -> vectors) share."""

from typing import Literal

from xai_configlib import Config, configclass, field

_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
_NAME_WORDS = "a letter, then up to 63 of A-Z a-z 0-9 _"

STORED_ROWS_MULTIPLE = 1_024
"""Tables are stored with their row count rounded up to this, on every topology; the device count must divide it."""


def rounded_up(rows: int) -> int:
    """Rows that are stored for so many logical ones."""
    return -(-rows // STORED_ROWS_MULTIPLE) * STORED_ROWS_MULTIPLE


@configclass(policy="must_match")
class TableSpec(Config):
    """An embedding table: how many rows, how wide, and how an id finds its rows."""

    name: str = field(pattern=_NAME, pattern_words=_NAME_WORDS)
    """Name that features refer to."""

    num_embeddings: int = field(policy="may_change", ge=1, lt=2**31)
    """Logical rows. Storage is rounded up to a multiple of 1,024. A child may give a directly indexed table more of them: the old
    rows stay."""

    embedding_dim: int = field(ge=1)
    """Width of a row."""

    salts: tuple[int, ...] = field(default=(0x9E3779B97F4A7C15, 0xD1B54A32D192ED03), max_length=8)
    """One hash per salt, an unsigned 64-bit number: row j of an id is splitmix64(id ^ salt_j) mod num_embeddings, and its
    vector is the sum of those rows. Empty: directly indexed, an id is its own row number."""

    oov: Literal["hash", "row", "error"] = field(default="error")
    """A directly indexed id outside 0..num_embeddings-1: `hash` it (splitmix64, salt 0), use the last `row`, which is then
    no id's own (ids are 0..num_embeddings-2), or a bad record."""

    @property
    def num_hashes(self) -> int:
        """Rows that one id touches (K)."""
        return max(1, len(self.salts))

    @property
    def stored_rows(self) -> int:
        """num_embeddings rounded up to a multiple of 1,024."""
        return rounded_up(self.num_embeddings)

    def cannot_continue(self, before: "TableSpec") -> str | None:
        """Why this table cannot take over the rows of `before`, the same table of a checkpoint; None: it can."""
        if self.num_embeddings == before.num_embeddings:
            return None
        if self.salts:
            return "ids are hashed over all rows and would find other ones"
        if self.oov == "hash":
            return "ids outside it are hashed over all rows and would find other ones"
        if self.num_embeddings < before.num_embeddings:
            return f"it has {before.num_embeddings:,} rows in the checkpoint: rows would be lost"
        return None


@configclass(policy="must_match")
class FeatureSpec(Config):
    """One input of the model and the column it comes from."""

    name: str = field(pattern=_NAME, pattern_words=_NAME_WORDS)
    """Key of the feature's array in the batch."""

    group: Literal["user", "history", "candidate"] = field()
    """Which tokens it belongs to."""

    column: str = field(min_length=1)
    """Column of the row. The same column may feed several features."""

    kind: Literal["id", "ids", "float", "one_hot"] = field(default="id")
    """`id`: one id looked up in `table`. `ids`: a list of up to `max_values` ids, their vectors summed.
    `float`: a number. `one_hot`: an integer 0..max_values-1."""

    id_type: Literal["int", "string"] = field(default="int")
    """Type of the ids on the wire; a string becomes an int64 through xxh64, seed 0."""

    table: str | None = field(default=None)
    """Table of an `id` or `ids` feature. Two features of one table share its rows."""

    max_values: int = field(default=1, ge=1)
    """`ids`: ids kept per token, the first ones. `one_hot`: number of values."""

    required: bool = field(default=True)
    """A null or missing value is a bad record; if false it is padding (id), 0 (float) or all zero (one_hot)."""
