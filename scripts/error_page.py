"""docs/errors.md and docs/run_errors.md: every config error and every run error, with its cause and its cure.

    python scripts/error_page.py            writes the pages
    python scripts/error_page.py --check    exits with 1 and says so, if the pages, docs/errors.toml and the code do not agree

The messages come from the code (error_messages.py), causes and cures from docs/errors.toml. To add one: copy what --check prints
into a new block there, under the heading where a reader would look for it, name its placeholders, and write the pages.
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

from error_messages import CONFIG_ERRORS, PACKAGES, RUN_ERRORS, Kind, Site, same, sites, stands_in

DOCS = Path(__file__).resolve().parents[1] / "docs"
CATALOGUE, PAGE, RUN_PAGE = DOCS / "errors.toml", DOCS / "errors.md", DOCS / "run_errors.md"

_CONFIG_HEAD = """# Config errors

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
the same as `python -m xrex.train.trainer_recsys`. Exit code 1 is none of these: the command line was right, and the run failed;
[run_errors.md](run_errors.md) has what it says then.
"""

_RUN_HEAD = """# Run errors

A command that ends with exit code 1 was right, and then something failed: a disk, a broker, a record, a process. Its last lines
on stderr say what, where and what to do; `RUN_DIR/summary.json` keeps them as `error`. This page has every such message, what has
happened, what is lost, and what to run; `make docs` makes it from the code. Exit code 2 is another page: [errors.md](errors.md).
{contents}
## In the middle of the night

1. **Nothing that was saved is lost.** A step is there whole or not at all, with the positions in the stream that belong to its
   weights. What was trained behind the newest step is trained again, from the same records, if the log still holds them.
2. **Find the first cause.** Of several processes all repeat the words of the one that failed first: `process N failed: ...`.
3. **Look.** `xrex checkpoint list RUN_DIR` shows what is saved, `xrex data lag RUN_DIR` where the run stands in its stream.
4. **Mend what the line names, and go on with the same command**, or with `xrex train --run-dir RUN_DIR`: no row is left out, and
   none trained twice. Nothing here is mended by deleting a run folder or a topic.

| exit code | what it means | a restart |
|---|---|---|
| 1 | a message of this page | goes on, once its cause is mended; where a broker or a host was away, at once |
| 2 | the command line or a config is wrong: [errors.md](errors.md) | would meet it again |
| 130, 143 | no error: stopped by SIGINT or SIGTERM, with a checkpoint | goes on |
| 134 | JAX has ended this process because another one went: see its lines | goes on |
| 137 | killed from outside, often for memory: `dmesg`, or the scheduler, says so | goes on |

Below, `<…>` stands for what differs from case to case, and `…` in front for the record that a message is about. RUN_DIR is the
run folder, NEW another one. `xrex` is `.venv/bin/xrex`, `xrex train` the same as `python -m xrex.train.trainer_recsys`. An
override such as `dataset.skip_bad_records=10` goes behind the command.
"""


@dataclass(frozen=True)
class Page:
    """One of the pages, and the errors that it has."""

    file: Path
    kind: Kind
    head: str
    part: str
    """The table of docs/errors.toml that holds its causes and cures; "": the top level."""


CONFIG = Page(PAGE, CONFIG_ERRORS, _CONFIG_HEAD, "")
RUN = Page(RUN_PAGE, RUN_ERRORS, _RUN_HEAD, "run")
PAGES = (CONFIG, RUN)


@dataclass(frozen=True)
class Entry:
    """Messages of one cause and one cure."""

    messages: tuple[str, ...]
    cause: str
    cure: str
    made_in: str = ""
    """The file that words them, where no call of an error shows it; the check then looks for their words there."""


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

    def entries(self) -> list[Entry]:
        """Every block, in the order of the page."""
        return [entry for heading in self.headings for entry in heading.entries]

    def messages(self) -> list[str]:
        """Every message, in the order of the page."""
        return [message for entry in self.entries() for message in entry.messages]


def read_catalogue(text: str, part: str = "") -> Catalogue:
    """What a text holds for the page with this part. Raises KeyError for a block without a part, TypeError for an unknown one."""
    document = tomllib.loads(text)
    document = document[part] if part else document
    return Catalogue(
        tuple(map(_heading, document["heading"])), tuple(item["call"] for item in document.get("passed_on", ()))
    )


def _heading(table: Mapping[str, Any]) -> Heading:
    entries = [Entry(tuple(error.pop("messages")), **error) for error in table["error"]]
    return Heading(table["title"], table["intro"], tuple(entries))


def page(catalogue: Catalogue, of: Page = CONFIG) -> str:
    """The whole page, as Markdown."""
    titles = [heading.title for heading in catalogue.headings]
    contents = "\n".join(f"- [{title}](#{_anchor(title)})" for title in titles)
    return "".join([of.head.format(contents=f"\n{contents}\n"), *map(_section, catalogue.headings)])


def _section(heading: Heading) -> str:
    return "\n".join([f"\n## {heading.title}\n", heading.intro, *map(_paragraph, heading.entries), ""])


def _paragraph(entry: Entry) -> str:
    lines = "\n".join(entry.messages)
    return f"\n```text\n{lines}\n```\n\n- Cause: {entry.cause}\n- Cure: {entry.cure}"


def _anchor(title: str) -> str:
    """The name that Markdown gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def faults(
    catalogue: Catalogue, found: Sequence[Site], written: str, of: Page = CONFIG, packages: Path = PACKAGES
) -> list[str]:
    """Where the code, the catalogue and a page do not agree, a line each; none: they do."""
    made = {same(site.template): site for site in found if not site.is_passed_on}
    elsewhere = [
        (message, entry.made_in) for entry in catalogue.entries() if entry.made_in for message in entry.messages
    ]
    unseen = {message for message, _ in elsewhere}
    listed = {same(message): message for message in catalogue.messages() if message not in unseen}
    passed_on = {site.call: site for site in found if site.is_passed_on}
    lines = [f"{made[key].place}: not in docs/errors.toml: {_block(made[key])}" for key in made.keys() - listed]
    lines += [f"docs/errors.toml: no code prints this, remove it: {listed[key]}" for key in listed.keys() - made]
    lines += [
        f"docs/errors.toml: {file} does not hold these words, remove them: {message}"
        for message, file in elsewhere
        if not stands_in(message, file, packages)
    ]
    lines += [
        f"{passed_on[call].place}: no word of this message stands here: word it at the call, "
        f"or say in docs/errors.toml, as passed_on, where it is worded: {call}"
        for call in passed_on.keys() - set(catalogue.passed_on)
    ]
    lines += [
        f"docs/errors.toml: passed_on names a call that is not there, remove it: {call}"
        for call in set(catalogue.passed_on) - passed_on.keys()
    ]
    counts, last = (
        Counter(map(same, catalogue.messages())),
        {same(message): message for message in catalogue.messages()},
    )
    lines += [f"docs/errors.toml: stands {count} times: {last[key]}" for key, count in counts.items() if count > 1]
    if written != page(catalogue, of):
        lines.append(f"docs/{of.file.name} is not what docs/errors.toml makes: make docs")
    return sorted(lines)


def _block(site: Site) -> str:
    return f"messages = [{json.dumps(site.template, ensure_ascii=False)}]"


def main() -> int:
    """Writes the pages, or checks them; 0, or 1 where something is missing or superfluous."""
    parser = argparse.ArgumentParser(
        description="docs/errors.md and docs/run_errors.md: every error, its cause and its cure."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 unless all is there")
    check = parser.parse_args().check
    lines = [line for each in PAGES for line in _made(each, check)]
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


def _made(of: Page, check: bool) -> list[str]:
    """What is wrong with a page, once it is written."""
    catalogue = read_catalogue(CATALOGUE.read_text("utf-8"), of.part)
    if not check:
        of.file.write_text(page(catalogue, of), "utf-8")
    written = of.file.read_text("utf-8") if of.file.exists() else ""
    return faults(catalogue, sites(kind=of.kind), written, of)


if __name__ == "__main__":
    sys.exit(main())
