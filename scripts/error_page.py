"""docs/errors.md: every config error, with its cause and its cure.

    python scripts/error_page.py            writes the page
    python scripts/error_page.py --check    exits with 1 and says so, if the page, docs/errors.toml and the code do not agree

The messages come from the code (error_messages.py), causes and cures from docs/errors.toml. To add one: copy what --check prints
into a new block there, under the heading where a reader would look for it, name its placeholders, and write the page.
"""

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from error_messages import Site, same, sites

DOCS = Path(__file__).resolve().parents[1] / "docs"
CATALOGUE, PAGE = DOCS / "errors.toml", DOCS / "errors.md"

_HEAD = """# Config errors

A command that ends with exit code 2 has found its command line or a config wrong, before it connected to a broker, or created or
changed a checkpoint folder. It prints a line for each problem; wrong values of a file and of the command line come all at once.
This page has every message that such a line can hold, what causes it and what to do; `make docs` makes it from the code.
{contents}
## How to read a line

    SOURCE: PATH = VALUE: EXPECTED; FIX

    $ xrex train --config configs/quickstart.yaml --dry-run model.width=wide trainer.max_step=500
    command line: trainer.max_step: unknown field; did you mean max_steps?
    command line: model.width = 'wide': expected an integer

- SOURCE is where the value stands: a file, or `command line` for an override.
- PATH is the field, as an override names it: `dataset.features[3].column`; `xrex config fields PATH` says what it takes.
- VALUE is what was found, on one line, cut at 120 characters. Where it may be a secret, or where there is none, it is left out.
- EXPECTED says what is wrong, FIX what to do; a part that there is nothing to say for is left out.

Below, `…` stands for `SOURCE: PATH = VALUE:`, and `<…>` for what differs from case to case. Some lines have another beginning,
which is shown. In a run of several processes `process N failed: ` may stand before all. `xrex` is `.venv/bin/xrex`, `xrex train`
the same as `python -m xrex.train.trainer_recsys`. Exit code 1 is none of these: the command line was right, and the run failed.
"""


@dataclass(frozen=True)
class Entry:
    """Messages of one cause and one cure."""

    messages: tuple[str, ...]
    cause: str
    cure: str


@dataclass(frozen=True)
class Heading:
    """A part of the page."""

    title: str
    intro: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Catalogue:
    """docs/errors.toml."""

    headings: tuple[Heading, ...]
    passed_on: tuple[str, ...]
    """Calls that pass on a message which is made elsewhere."""

    def messages(self) -> list[str]:
        """Every message, in the order of the page."""
        return [message for heading in self.headings for entry in heading.entries for message in entry.messages]


def read_catalogue(text: str) -> Catalogue:
    """The catalogue that a text holds. Raises KeyError for a block that lacks a part, TypeError for one that is not known."""
    document = tomllib.loads(text)
    return Catalogue(
        tuple(map(_heading, document["heading"])), tuple(item["call"] for item in document.get("passed_on", ()))
    )


def _heading(table: Mapping[str, Any]) -> Heading:
    entries = [Entry(tuple(error.pop("messages")), **error) for error in table["error"]]
    return Heading(table["title"], table["intro"], tuple(entries))


def page(catalogue: Catalogue) -> str:
    """The whole page, as Markdown."""
    titles = [heading.title for heading in catalogue.headings]
    contents = "\n".join(f"- [{title}](#{_anchor(title)})" for title in titles)
    return "".join([_HEAD.format(contents=f"\n{contents}\n"), *map(_section, catalogue.headings)])


def _section(heading: Heading) -> str:
    return "\n".join([f"\n## {heading.title}\n", heading.intro, *map(_paragraph, heading.entries), ""])


def _paragraph(entry: Entry) -> str:
    lines = "\n".join(entry.messages)
    return f"\n```text\n{lines}\n```\n\n- Cause: {entry.cause}\n- Cure: {entry.cure}"


def _anchor(title: str) -> str:
    """The name that Markdown gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def faults(catalogue: Catalogue, found: Sequence[Site], written: str) -> list[str]:
    """Where the code, the catalogue and the page do not agree, a line each; none: they do."""
    made = {same(site.template): site for site in found if not site.is_passed_on}
    listed = {same(message): message for message in catalogue.messages()}
    passed_on = {site.call: site for site in found if site.is_passed_on}
    lines = [f"{made[key].place}: not in docs/errors.toml: {_block(made[key])}" for key in made.keys() - listed]
    lines += [f"docs/errors.toml: no code prints this, remove it: {listed[key]}" for key in listed.keys() - made]
    lines += [
        f"{passed_on[call].place}: no word of this message stands here: word it at the call, "
        f"or say in docs/errors.toml, as passed_on, where it is worded: {call}"
        for call in passed_on.keys() - set(catalogue.passed_on)
    ]
    lines += [
        f"docs/errors.toml: passed_on names a call that is not there, remove it: {call}"
        for call in set(catalogue.passed_on) - passed_on.keys()
    ]
    counts = Counter(map(same, catalogue.messages()))
    lines += [f"docs/errors.toml: stands {count} times: {listed[key]}" for key, count in counts.items() if count > 1]
    if written != page(catalogue):
        lines.append("docs/errors.md is not what docs/errors.toml makes: make docs")
    return sorted(lines)


def _block(site: Site) -> str:
    return f"messages = [{json.dumps(site.template, ensure_ascii=False)}]"


def main() -> int:
    """Writes the page, or checks it; 0, or 1 where something is missing or superfluous."""
    parser = argparse.ArgumentParser(description="docs/errors.md: every config error, with its cause and its cure.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 unless all is there")
    check = parser.parse_args().check
    catalogue = read_catalogue(CATALOGUE.read_text("utf-8"))
    if not check:
        PAGE.write_text(page(catalogue), "utf-8")
    lines = faults(catalogue, sites(), PAGE.read_text("utf-8") if PAGE.exists() else "")
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
