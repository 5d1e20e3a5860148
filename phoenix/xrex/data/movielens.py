"""MovieLens ratings as an event table: GroupLens' own files (u.data, u.user, u.item), or typed tables (NAME.inter,
.user, .item).

Harper & Konstan, The MovieLens Datasets: History and Context, 2015. The licence forbids redistribution: nothing of it
is part of this repository, the reader brings the files.

Columns: user, age, gender, occupation; item, year, genres (a list); event_time_ms; labels like (rating >= 4), love (5),
dislike (<= 2). All are int64. gender, occupation and the genres are codes: the place, from 0, in the byte-sorted
distinct values of the files, so that both layouts give the same ones. year is 0 where it is unknown.
"""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from xrex.data.events import TIME_COLUMN, EventColumns
from xrex.errors import ConfigError

COLUMNS = EventColumns(
    user_columns=("age", "gender", "occupation"),
    candidate_columns=("item", "year", "genres"),
    actions=("like", "love", "dislike"),
)

_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
"""The order of the 19 flags that end a line of u.item."""


def events(path: Path) -> pa.Table:
    """Every rating of the data set at `path`, in the order of its file: its folder, or its u.data or NAME.inter file.

    Raises ConfigError if the files are not there or are not MovieLens'.
    """
    ratings_path = _ratings_file(path)
    read = _read_grouplens if ratings_path.name == "u.data" else _read_typed
    try:
        return _joined(read(ratings_path))
    except (OSError, KeyError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise ConfigError(
            f"{ratings_path}: not a MovieLens data set: {_one_line(error)}; name the folder of u.data or NAME.inter"
        ) from None


def _ratings_file(path: Path) -> Path:
    if path.is_file() and (path.name == "u.data" or path.suffix == ".inter"):
        return path
    found = [*path.glob("u.data"), *sorted(path.glob("*.inter"))]
    if len(found) != 1:
        raise ConfigError(
            f"{path}: {len(found)} files named u.data or NAME.inter: name the folder of one data set, or the file"
        )
    return found[0]


class _Files(NamedTuple):
    ratings: pa.Table  # user, item, rating, time: strings
    users: pa.Table  # user, age, gender, occupation: strings
    items: pa.Table  # item, year: strings
    genres: list[list[str]]  # of each of items


def _read_grouplens(ratings: Path) -> _Files:
    folder = ratings.parent
    names = ["item", "title", "date", "video_date", "url", *_GENRES]
    items = _read(folder / "u.item", "|", names, encoding="latin1")
    flags = zip(*(items[genre].to_pylist() for genre in _GENRES), strict=True)
    years = [date[-4:] for date in items["date"].to_pylist()]  # 01-Jan-1995
    return _Files(
        _read(ratings, "\t", ["user", "item", "rating", "time"]),
        _read(folder / "u.user", "|", ["user", "age", "gender", "occupation", "zip"]),
        pa.table({"item": items["item"], "year": pa.array(years, pa.string())}),
        [[genre for genre, flag in zip(_GENRES, row, strict=True) if flag == "1"] for row in flags],
    )


def _read_typed(ratings: Path) -> _Files:
    names = {
        "user_id": "user",
        "item_id": "item",
        "timestamp": "time",
        "release_year": "year",
        "class": "genres",
        "genre": "genres",
    }

    def table(suffix: str) -> pa.Table:
        read = _read(ratings.with_suffix(suffix), "\t", None)
        fields = [name.partition(":")[0] for name in read.column_names]
        return read.rename_columns([names.get(field, field) for field in fields])

    items = table(".item")
    return _Files(table(".inter"), table(".user"), items, [words.split() for words in items["genres"].to_pylist()])


def _read(path: Path, delimiter: str, names: list[str] | None, encoding: str = "utf8") -> pa.Table:
    """Every column as strings; `names` None: from the first line."""
    with path.open("rb") as file:
        first_line = file.readline().decode(encoding).rstrip("\r\n")
    columns = names or first_line.split(delimiter)
    return pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(column_names=columns, skip_rows=0 if names else 1, encoding=encoding),
        pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char=False),
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string())),
    )


def _joined(files: _Files) -> pa.Table:
    user_ids, item_ids = _integers(files.ratings["user"]), _integers(files.ratings["item"])
    user = _rows_of(user_ids, _integers(files.users["user"]), "user")
    item = _rows_of(item_ids, _integers(files.items["item"]), "item")
    rating = files.ratings["rating"].cast(pa.float64()).to_numpy()
    time_s = files.ratings["time"].cast(pa.float64()).to_numpy()
    gender, occupation = (_coded(files.users[name].to_pylist()) for name in ("gender", "occupation"))
    years = np.array([int(year) if year.isdecimal() else 0 for year in files.items["year"].to_pylist()], np.int64)
    code = _codes(chain.from_iterable(files.genres))
    genres = pa.array([[code[name] for name in names] for names in files.genres], pa.list_(pa.int64()))
    return pa.table(
        {
            "user": user_ids,
            "age": _integers(files.users["age"])[user],
            "gender": gender[user],
            "occupation": occupation[user],
            "item": item_ids,
            "year": years[item],
            "genres": genres.take(pa.array(item)),
            TIME_COLUMN: (time_s * 1_000).astype(np.int64),
            "like": (rating >= 4).astype(np.int64),
            "love": (rating >= 5).astype(np.int64),
            "dislike": (rating <= 2).astype(np.int64),
        }
    )


def _integers(texts: pa.ChunkedArray) -> np.ndarray:
    return texts.cast(pa.int64()).to_numpy()


def _rows_of(ids: np.ndarray, known: np.ndarray, noun: str) -> np.ndarray:
    """The row of each id in `known`. Raises ValueError for an id that is not there."""
    order = np.argsort(known)
    rows = order[np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)]
    missing = ids[known[rows] != ids]
    if len(missing):
        raise ValueError(f"{noun} {missing[0]} is rated but is not in the table of {noun}s")
    return rows


def _codes(texts: Iterable[str]) -> dict[str, int]:
    """The place of each text among the byte-sorted distinct texts."""
    return {text: place for place, text in enumerate(sorted(set(texts)))}


def _coded(texts: list[str]) -> np.ndarray:
    code = _codes(texts)
    return np.array([code[text] for text in texts], np.int64)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
