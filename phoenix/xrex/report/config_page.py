"""docs/config.md: every field of a config, from the classes themselves."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby

from xai_configlib import FieldRow

_HEAD = """# Every field of a config

Made from the config classes by `make docs`; `xrex config fields [PATH]` prints the same. A file may leave out whatever has a
default; `config.json` in a checkpoint holds every value.

The policy says what a run that begins from a checkpoint may do with the field:

| policy | a restart in the same run folder | a child (`--checkpoint`) |
|---|---|---|
| must_match | may not differ | may not differ |
| may_change | may not differ; the error prints the command that makes a child | may differ, shown in the table of differences |
| per_start | may differ at each start | may differ |
| from_checkpoint | may not differ | follows the checkpoint, unless the command line says otherwise |
| own | as before, unless given anew | never inherited |

`[*]` stands for any entry of a list, `.*` for any entry of an object. A secret is a reference, `{"env": NAME}` or
`{"file": PATH}`, never the text itself. Infinity is written `"Infinity"` or `"-Infinity"`, in quotes.
"""


def config_page(rows: Iterable[FieldRow]) -> str:
    """The page, a section for each part of the config and a table row for each field that holds a value."""
    parts = [_HEAD]
    for section, group in groupby(rows, key=lambda row: row.path.partition(".")[0].partition("[")[0]):
        first, *below = group
        parts.append(f"\n## {section}\n\n{first.doc}\n\n{_table(below)}")
    return "".join(parts)


def _table(rows: Sequence[FieldRow]) -> str:
    lines = ["| field | type | default | policy | meaning |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(map(_escaped, _cells(row))) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: FieldRow) -> tuple[str, ...]:
    name = f"`{row.path}`" + (f" of `{row.variant}`" if row.variant else "")
    limits = ", ".join(f"{_LIMITS.get(limit, limit)} {_json(value)}" for limit, value in row.constraints.items())
    kind = ", ".join(filter(None, (row.type, limits)))
    default = "required" if row.required else f"`{_json(row.default)}`"
    return name, kind, default, row.policy or "", f"{row.doc} ({row.unit})" if row.unit else row.doc


_LIMITS = {
    "ge": "at least",
    "gt": "more than",
    "le": "at most",
    "lt": "less than",
    "pattern": "matching",
    "min_length": "length at least",
    "max_length": "length at most",
}


def _json(value: object) -> str:
    if isinstance(value, dict) and "__class" in value:  # what it holds has rows of its own
        return str(value["__class"])
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
