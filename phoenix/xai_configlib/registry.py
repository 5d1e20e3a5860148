"""Which config classes there are, by tag. A class is found here and nowhere else: nothing is imported by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from pydantic import BaseModel

from xai_configlib.annotations import is_class, parts
from xai_configlib.errors import Refused, did_you_mean, shown
from xai_configlib.secrets import SecretRef

Policy = Literal["must_match", "may_change", "per_start", "from_checkpoint", "own"]
POLICIES: tuple[str, ...] = get_args(Policy)
CLASS_KEY = "__class"
VERSION_KEY = "__version"

ConfigType = type[BaseModel]


@dataclass(frozen=True)
class ClassInfo:
    """What the registry knows of a config class."""

    tag: str
    aliases: tuple[str, ...]
    version: int | None
    names: Mapping[str, str]
    """Every name that a file may use, aliases included -> the field's name."""
    policies: Mapping[str, Policy | None]
    """Field -> policy. None: the field is a nested config, its fields have their own."""
    mapping_fields: tuple[str, ...]
    holds_secrets: bool
    """Whether one of its own fields does. No value of such a class is shown: a literal may stand in the field beside."""
    pattern_words: Mapping[str, str]
    """Pattern of a text -> what it demands, in words."""


_registered: dict[ConfigType, ClassInfo] = {}
_by_tag: dict[str, ConfigType] = {}


def register(cls: ConfigType, info: ClassInfo) -> None:
    """Makes the class known by its tags. Raises TypeError if one belongs to another class."""
    for name in (info.tag, *info.aliases):
        other = _by_tag.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.__qualname__}: the tag {name!r} belongs to {other.__module__}.{other.__qualname__}")
    for pattern, words in info.pattern_words.items():
        if pattern_words(pattern) not in ("", words):
            raise TypeError(f"{cls.__qualname__}: pattern {pattern} is called {pattern_words(pattern)!r} elsewhere")
    _by_tag.update(dict.fromkeys((info.tag, *info.aliases), cls))
    _registered[cls] = info
    _permitted.cache_clear()


def registered(cls: ConfigType) -> ClassInfo | None:
    """What the registry knows of the class; None if nothing."""
    return _registered.get(cls)


def class_info(cls: ConfigType) -> ClassInfo:
    """What the registry knows of the class. Raises TypeError if it is not registered."""
    if cls not in _registered:
        raise TypeError(f"{cls.__name__}: put @configclass above the class")
    return _registered[cls]


def pattern_words(pattern: str) -> str:
    """What a pattern demands, in the words that a field with it declares; empty where none does."""
    return next((info.pattern_words[pattern] for info in _registered.values() if pattern in info.pattern_words), "")


def field_names() -> frozenset[str]:
    """Every name that a field of any registered class has, former ones included."""
    return frozenset(name for info in _registered.values() for name in info.names)


def may_hold_secret(annotation: Any) -> bool:
    """Whether a value of the type may hold a SecretRef, also in a config that nests in it."""
    return _may_hold_secret(annotation, set())


def _may_hold_secret(annotation: Any, seen: set[ConfigType]) -> bool:
    for part in parts(annotation):
        if part is SecretRef:
            return True
        below = set(permitted_classes(part).values()) - seen if is_class(part, BaseModel) else set()
        seen |= below  # A class may nest in itself.
        if any(
            _may_hold_secret(described.annotation, seen) for cls in below for described in cls.model_fields.values()
        ):
            return True
    return False


def permitted_classes(*bases: ConfigType) -> Mapping[str, ConfigType]:
    """Tag -> class, for every registered class that may stand where `bases` are declared.

    A class without fields that has subclasses is only their base, and is not among them.
    Raises TypeError if there is none, since a class was not registered.
    """
    return _permitted(bases)


@cache
def _permitted(bases: tuple[ConfigType, ...]) -> Mapping[str, ConfigType]:
    below = {cls for cls in _by_tag.values() if issubclass(cls, bases)}
    only_bases = {cls for cls in below if not cls.model_fields and any(cls in other.__mro__[1:] for other in below)}
    if not below:
        class_info(bases[0])  # raises
    return dict(sorted((class_info(cls).tag, cls) for cls in below - only_bases))


def class_of(bases: tuple[ConfigType, ...], node: Mapping[str, Any]) -> Any:
    """The class that a node names, or the only one that may stand where `bases` are declared; else Refused."""
    choices = permitted_classes(*bases)
    expected = "expected one of " + ", ".join(choices)
    if CLASS_KEY not in node:
        if len(choices) == 1:
            return next(iter(choices.values()))
        return Refused(None, f"missing; {expected}", step=CLASS_KEY)
    tag = node[CLASS_KEY]
    target = _by_tag.get(tag) if isinstance(tag, str) else None
    if target is not None and target in choices.values():
        return target
    known = [name for name, cls in _by_tag.items() if cls in choices.values()]
    may_be_secret = any(class_info(cls).holds_secrets for cls in choices.values())
    return Refused(None if may_be_secret else shown(tag), expected, did_you_mean(tag, known), CLASS_KEY)
