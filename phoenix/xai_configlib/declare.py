"""How a config class is declared: its decorator, and its fields."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from pydantic import BaseModel, Field

from xai_configlib.annotations import arms, check_type, config_arms, holds_secret, is_mapping, is_optional, parts
from xai_configlib.constraints import CONSTRAINTS, check_constraints
from xai_configlib.registry import POLICIES, ClassInfo, ConfigType, Policy, register, registered

T = TypeVar("T")


@overload
def field(
    *,
    default: T,
    policy: Policy | None = None,
    aliases: tuple[str, ...] = (),
    pattern_words: str = "",
    **constraints: Any,
) -> T: ...
@overload
def field(
    *,
    default_factory: Callable[[], T],
    policy: Policy | None = None,
    aliases: tuple[str, ...] = (),
    pattern_words: str = "",
    **constraints: Any,
) -> T: ...
@overload
def field(
    *, policy: Policy | None = None, aliases: tuple[str, ...] = (), pattern_words: str = "", **constraints: Any
) -> Any: ...
def field(
    *, policy: Policy | None = None, aliases: tuple[str, ...] = (), pattern_words: str = "", **kwargs: Any
) -> Any:
    """A field of a config class; its doc is the string literal below it.

    default, default_factory   value of the field where a file leaves it out; neither: it is required
    policy                     what may become of it in a restart or a child; None: the class's policy
    aliases                    former names, still read, never written
    pattern_words              what `pattern` demands, to follow "expected" in an error: "1 to 64 of A-Z a-z 0-9"
    others                     pydantic's constraints: ge, gt, le, lt, multiple_of, min_length, max_length, pattern
    """
    unknown = kwargs.keys() - {*CONSTRAINTS, "default", "default_factory"}
    if unknown:
        raise TypeError(f"field() knows no {', '.join(sorted(unknown))}")
    if policy is not None and policy not in POLICIES:
        raise TypeError(f"field(policy={policy!r}): the policies are {', '.join(POLICIES)}")
    if pattern_words and "pattern" not in kwargs:
        raise TypeError("field(pattern_words=...) says what a pattern demands: give the pattern too")
    words = {kwargs["pattern"]: pattern_words} if pattern_words else {}
    extra: dict[str, Any] = {"policy": policy, "aliases": list(aliases), "pattern_words": words}
    return Field(json_schema_extra=extra, **kwargs)


C = TypeVar("C", bound=type[BaseModel])


@overload
def configclass(cls: C, /) -> C: ...
@overload
def configclass(
    *, tag: str | None = None, aliases: tuple[str, ...] = (), policy: Policy | None = None, version: int | None = None
) -> Callable[[C], C]: ...
def configclass(
    cls: Any = None,
    /,
    *,
    tag: str | None = None,
    aliases: tuple[str, ...] = (),
    policy: Policy | None = None,
    version: int | None = None,
) -> Any:
    """Registers a class below Config.

    tag       its name in files, stable for ever; default: the class's name
    aliases   former tags, still read, never written
    policy    policy of the fields that declare none
    version   number written as `__version` where the class is the root of a file

    Raises TypeError if the tag belongs to another class, or if a field has no policy, no doc, or a type that is no
    config type: one that JSON cannot hold without doubt, or whose values can be changed. A field whose type is a nested
    config class needs no policy: the nested fields have theirs.
    """

    def decorate(cls: C) -> C:
        register(cls, _inspect(cls, tag or cls.__name__, aliases, policy, version))
        return cls

    return decorate if cls is None else decorate(cls)


def _inspect(
    cls: ConfigType, tag: str, aliases: tuple[str, ...], policy: Policy | None, version: int | None
) -> ClassInfo:
    names: dict[str, str] = {}
    for name, info in cls.model_fields.items():
        try:
            check_type(info.annotation)
            check_constraints(info.annotation, info.metadata)
        except TypeError as error:
            raise TypeError(f"{cls.__qualname__}.{name}: {error}") from None
        if not info.description and _has_source(cls):
            raise TypeError(f"{cls.__qualname__}.{name}: document the field by a string literal below it")
        for known in (name, *_declared(info)["aliases"]):
            if names.setdefault(known, name) != name:
                raise TypeError(f"{cls.__qualname__}.{name}: the name {known!r} belongs to {names[known]}")
    fields = cls.model_fields.items()
    return ClassInfo(
        tag=tag,
        aliases=aliases,
        version=version,
        names=names,
        policies={name: _field_policy(cls, name, info, policy) for name, info in fields},
        mapping_fields=tuple(name for name, info in fields if any(map(is_mapping, parts(info.annotation)))),
        holds_secrets=any(holds_secret(info.annotation) for _, info in fields),
        pattern_words={
            pattern: words for _, info in fields for pattern, words in _declared(info)["pattern_words"].items()
        },
    )


def _declared(info: Any) -> dict[str, Any]:
    extra = info.json_schema_extra
    return (
        extra if isinstance(extra, dict) and "policy" in extra else {"policy": None, "aliases": (), "pattern_words": {}}
    )


def _field_policy(cls: ConfigType, name: str, info: Any, class_policy: Policy | None) -> Policy | None:
    if declared := _declared(info)["policy"]:
        return declared
    if name not in inspect.get_annotations(cls):
        inherited = [known.policies for base in cls.__mro__[1:] if (known := registered(base))]
        for policies in inherited:
            if name in policies:
                return policies[name]
    is_node = len(config_arms(info.annotation)) == len(arms(info.annotation)) and not is_optional(info.annotation)
    if class_policy is None and not is_node:
        raise TypeError(
            f"{cls.__qualname__}.{name}: declare a policy, at the field or the class: {', '.join(POLICIES)}"
        )
    return class_policy


def _has_source(cls: type) -> bool:
    try:
        return bool(inspect.getsource(cls))
    except (OSError, TypeError):
        return False
