"""Exact differences between two configs, leaf by leaf."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xai_configlib.config import Config, Policy, class_info, plain
from xai_configlib.errors import join_path


@dataclass(frozen=True)
class Difference:
    """One place where two configs differ, with both values as JSON writes them."""

    path: str
    left: Any
    right: Any
    policy: Policy
    """Policy of the field that holds the difference."""


def diff(a: Config, b: Config) -> list[Difference]:
    """Every difference, in the order of the fields; empty if and only if the canonical texts are equal.

    Compared are leaves: 1 and 1.0, or 0.0 and -0.0, differ. Lists of different length, objects of different keys, and
    nested configs of different classes are one difference: the whole value, with the policy of the field that holds it.
    """
    return list(_differences("", a, b, "must_match"))


def _differences(path: str, a: Any, b: Any, policy: Policy) -> Iterator[Difference]:
    if isinstance(a, Config) and type(a) is type(b):
        for name, own_policy in class_info(type(a)).policies.items():
            # A nested config without a policy: only its class or absence can differ here, and that must match.
            field_policy = own_policy or "must_match"
            yield from _differences(join_path(path, name), getattr(a, name), getattr(b, name), field_policy)
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _differences(join_path(path, index), left, right, policy)
    elif isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        for key in a:
            yield from _differences(join_path(path, str(key)), a[key], b[key], policy)
    elif _text(a) != _text(b):
        yield Difference(path, plain(a), plain(b), policy)


def _text(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True)
