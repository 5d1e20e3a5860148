"""Production against experiment: what may differ, field by field, by the policy declared at the field."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from xai_configlib.config import Config, plain
from xai_configlib.diff import ABSENT, Difference, diff
from xai_configlib.errors import is_at_or_below, split_path
from xai_configlib.overrides import overridden_config
from xai_configlib.registry import CLASS_KEY, Policy

Mode = Literal["restart", "child"]
FORBIDDEN = "forbidden"
_CELL_CHARACTERS = 60


@dataclass(frozen=True)
class Row:
    """One difference and what becomes of it."""

    path: str
    production: Any
    experiment: Any
    policy: Policy
    verdict: str
    """`forbidden`, or in words whose value is taken."""
    takes_production: bool = False
    """Whether the reconciled config has production's value here."""


@dataclass(frozen=True)
class Reconciliation:
    """The config to run, and a row for each difference between production and the experiment."""

    config: Config
    rows: tuple[Row, ...]

    @property
    def forbidden(self) -> tuple[Row, ...]:
        """The differences that may not be; the caller raises if there are any."""
        return tuple(row for row in self.rows if row.verdict == FORBIDDEN)

    def table(self) -> list[str]:
        """The rows as lines of plain text with aligned columns, a heading first; empty if nothing differs."""
        if not self.rows:
            return []
        heading = ("field", "production", "experiment", "policy", "verdict")
        cells = [(row.path, _cell(row.production), _cell(row.experiment), row.policy, row.verdict) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(heading, *cells, strict=True)]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (heading, *cells)
        ]


def reconcile(
    production: Config,
    experiment: Config,
    *,
    mode: Mode,
    overridden: Collection[str] = (),
    given: Collection[str] = (),
) -> Reconciliation:
    """Judges every difference between the config of a checkpoint and the config of a run that begins from it.

    mode         `restart`: the same run goes on, production is its config so far; `child`: a new run from a checkpoint
    overridden   paths that the command line assigned to
    given        paths that the experiment's own file names; read only for `own` fields of a restart

    | policy          | child                                           | restart                          |
    |-----------------|-------------------------------------------------|----------------------------------|
    | must_match      | forbidden                                       | forbidden                        |
    | may_change      | allowed                                         | forbidden                        |
    | per_start       | allowed                                         | allowed                          |
    | from_checkpoint | follows production unless overridden            | forbidden                        |
    | own             | never inherited: the experiment's, or its default | as before, unless given anew   |

    An unknown field that production keeps follows production; one that only the experiment keeps is allowed in a child.
    """
    judge = _judge_child if mode == "child" else _judge_restart
    anew = [split_path(path) for path in (*overridden, *(given if mode == "restart" else ()))]

    def is_anew(path: str) -> bool:
        return is_at_or_below(split_path(path), anew)

    rows = tuple(judge(difference, is_anew) for difference in diff(production, experiment))
    mapping = experiment.to_dict()
    for row in rows:
        if row.takes_production:
            mapping = _with_value(mapping, split_path(row.path), row.production)
    # What is unknown in it was kept before, in one of the two.
    config = type(experiment).from_json(mapping, unknown="keep", say=lambda line: None)
    return Reconciliation(config, rows)


def inherit(production: Config, overrides: Iterable[str] = ()) -> Config:
    """The config of a run that is given only a checkpoint: production's, `own` fields at their defaults, overridden.

    Raises ConfigError if an override is wrong, or if an `own` field without a default is not given.
    """
    return overridden_config(production, plain(production, without="own"), overrides)


def _judge_child(difference: Difference, is_anew: Callable[[str], bool]) -> Row:
    policy = difference.policy
    if difference.left is ABSENT:
        return _row(difference, "allowed: unknown, kept")
    if policy == "must_match":
        return _row(difference, FORBIDDEN)
    if policy == "from_checkpoint":
        if is_anew(difference.path):
            return _row(difference, "allowed: overridden on the command line")
        return _row(difference, "follows production", takes_production=True)
    return _row(difference, "own: not inherited" if policy == "own" else "allowed")


def _judge_restart(difference: Difference, is_anew: Callable[[str], bool]) -> Row:
    if difference.right is ABSENT:
        return _row(difference, "as before: unknown, kept", takes_production=True)
    if difference.policy == "own":
        if is_anew(difference.path):
            return _row(difference, "allowed: given anew")
        return _row(difference, "as before", takes_production=True)
    return _row(difference, "allowed" if difference.policy == "per_start" else FORBIDDEN)


def _row(difference: Difference, verdict: str, *, takes_production: bool = False) -> Row:
    return Row(difference.path, difference.left, difference.right, difference.policy, verdict, takes_production)


def _with_value(node: Any, steps: Sequence[str], value: Any) -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(node, Mapping):
        return {**node, step: _with_value(node.get(step), rest, value)}
    index = int(step)
    return [*node[:index], _with_value(node[index], rest, value), *node[index + 1 :]]


def _cell(value: Any) -> str:
    if isinstance(value, Mapping) and CLASS_KEY in value:
        return str(value[CLASS_KEY])
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(value)
    return text if len(text) <= _CELL_CHARACTERS else text[: _CELL_CHARACTERS - 1] + "…"
