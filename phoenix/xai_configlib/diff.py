"""Exact differences between two configs, leaf by leaf."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xai_configlib.config import Config, plain
from xai_configlib.errors import join_path
from xai_configlib.registry import Policy, class_info
from xai_configlib.spelling import key_text


class Absent(str):
    """Stands where one of two configs has no value: for an unknown field that only the other one keeps."""


ABSENT = Absent("(absent)")


@dataclass(frozen=True)
class Difference:
    """One place where two configs differ, with both values as JSON writes them, or ABSENT."""

    path: str
    left: Any
    right: Any
    policy: Policy
    """Policy of the field that holds the difference; of an unknown field, which has none, `from_checkpoint`."""


def diff(a: Config, b: Config) -> list[Difference]:
    """Every difference, in the order of the fields; empty if and only if the canonical texts are equal.

    Compared are leaves: 1 and 1.0, or 0.0 and -0.0, differ. Lists of different length, objects of different keys, and
    nested configs of different classes are one difference: the whole value, with the policy of the field that holds it.
    So is an unknown field that one of them keeps; those of a node come after its fields.
    """
    return list(_differences("", a, b, "must_match"))


def _differences(path: str, a: Any, b: Any, policy: Policy) -> Iterator[Difference]:
    if isinstance(a, Config) and type(a) is type(b):
        for name, own_policy in class_info(type(a)).policies.items():
            # A nested config without a policy: only its class or absence can differ here, and that must match.
            field_policy = own_policy or "must_match"
            yield from _differences(join_path(path, name), getattr(a, name), getattr(b, name), field_policy)
        yield from _unknown_differences(path, a, b)
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _differences(join_path(path, index), left, right, policy)
    elif isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        for key in a:
            yield from _differences(join_path(path, key_text(key)), a[key], b[key], policy)
    elif _text(a) != _text(b):
        yield Difference(path, plain(a), plain(b), policy)


def _unknown_differences(path: str, a: Config, b: Config) -> Iterator[Difference]:
    ours, theirs = a.kept_unknown, b.kept_unknown
    for name in sorted(ours.keys() | theirs.keys()):
        left, right = plain(ours.get(name, ABSENT)), plain(theirs.get(name, ABSENT))
        if left is ABSENT or right is ABSENT or _text(left) != _text(right):
            yield Difference(join_path(path, name), left, right, "from_checkpoint")


def _text(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True)
