"""What there is to set: a row for each field of a config class and of all that nest in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args, get_origin

from xai_configlib.annotations import (
    arms,
    bare,
    config_arms,
    element,
    has_fixed_length,
    is_enumeration,
    is_mapping,
    is_optional,
    permitted,
)
from xai_configlib.config import Config, plain
from xai_configlib.constraints import constraints_of
from xai_configlib.errors import join_path
from xai_configlib.registry import ConfigType, Policy, class_info, permitted_classes
from xai_configlib.secrets import SecretRef

UNITS = ("ns", "us", "ms", "s", "bytes", "bits", "steps", "rows", "examples", "batches", "epochs")
_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "string",
    Path: "path",
    bytes: "base64",
    datetime: "time",
    timedelta: "duration",
    SecretRef: "secret reference",
}


@dataclass(frozen=True)
class FieldRow:
    """One field of a config."""

    path: str
    """Where it stands; `[*]` and `.*` are any entry of a list or an object."""
    variant: str
    """Where the class can be chosen: the `__class` that has this field; else empty."""
    type: str
    """In words, such as `integer or null`, or the tags of the config classes that may stand here."""
    unit: str
    """What a number counts, from the end of the field's name (`_ms`, `_bytes`); empty if the name tells none."""
    required: bool
    default: Any
    """As JSON writes it; None if the field is required."""
    policy: Policy | None
    """None: a nested config, whose fields have their own."""
    doc: str
    constraints: Mapping[str, Any]
    """Constraint -> limit, as `field` takes them, limits as JSON writes them."""


def describe(cls: type[Config]) -> list[FieldRow]:
    """A row for each field of the class, in order, each followed by the rows of the configs that nest in it.

    A class that nests in itself is described once. Raises TypeError if the class is not registered.
    """
    return list(_rows(cls, "", "", ()))


def default_of(described: Any) -> Any:
    """The default of a field that has one, as JSON writes it."""
    return plain(described.get_default(call_default_factory=True, validated_data={}))


def type_name(annotation: Any) -> str:
    """The type in words, such as `list of integer` or `integer or null`."""
    names = [_name(arm) for arm in arms(annotation)]
    return " or ".join(names + ["null"] * is_optional(annotation))


def _rows(cls: ConfigType, path: str, variant: str, above: tuple[ConfigType, ...]) -> Iterator[FieldRow]:
    for name, described in cls.model_fields.items():
        here, required = join_path(path, name), described.is_required()
        yield FieldRow(
            path=here,
            variant=variant,
            type=type_name(described.annotation),
            unit=next((unit for unit in UNITS if name.endswith(f"_{unit}")), ""),
            required=required,
            default=None if required else default_of(described),
            policy=class_info(cls).policies[name],
            doc=" ".join((described.description or "").split()),
            constraints={name: plain(limit) for name, limit in constraints_of(described.metadata).items()},
        )
        for place, bases in _nested(described.annotation, here):
            choices = permitted_classes(*bases)
            for tag, target in choices.items():
                if target not in (cls, *above):
                    yield from _rows(target, place, tag if len(choices) > 1 else variant, (cls, *above))


def _nested(annotation: Any, path: str) -> Iterator[tuple[str, tuple[ConfigType, ...]]]:
    if classes := config_arms(annotation):
        yield path, classes
    for arm in map(bare, arms(annotation)):
        if is_mapping(arm):
            yield from _nested(get_args(arm)[1], f"{path}.*")
        elif has_fixed_length(arm):
            for index, _ in enumerate(get_args(arm)):
                yield from _nested(element(arm, index), join_path(path, index))
        elif get_origin(arm) is tuple:
            yield from _nested(element(arm, 0), f"{path}[*]")


def _name(annotation: Any) -> str:
    annotation = bare(annotation)
    if is_enumeration(annotation):
        return " or ".join(str(value) for value in permitted(annotation))
    if has_fixed_length(annotation):
        return f"list of {len(get_args(annotation))} ({', '.join(map(type_name, get_args(annotation)))})"
    if get_origin(annotation) is tuple:
        return f"list of {type_name(element(annotation, 0))}"
    if get_origin(annotation) is frozenset:
        return f"set of {type_name(element(annotation, 0))}"
    if is_mapping(annotation):
        return "object of {1} by {0}".format(*map(type_name, get_args(annotation)))
    return _NAMES.get(annotation) or " or ".join(permitted_classes(annotation))
