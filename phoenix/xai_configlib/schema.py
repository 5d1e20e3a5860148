"""JSON Schema of a config class, so that an editor checks a config while it is written."""

import math
import operator
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import quote

from xai_configlib.annotations import (
    bare,
    config_arms,
    element,
    has_fixed_length,
    is_class,
    is_enumeration,
    is_mapping,
    is_union,
    permitted,
)
from xai_configlib.config import Config
from xai_configlib.constraints import constraints_of
from xai_configlib.fields import default_of
from xai_configlib.registry import CLASS_KEY, VERSION_KEY, ConfigType, class_info, permitted_classes
from xai_configlib.secrets import ENV_NAME, SecretRef
from xai_configlib.spelling import BASE64, DURATION, INFINITIES, INT_KEY, TIME, key_text

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NUMERIC = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_SCALARS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    Path: {"type": "string", "minLength": 1},
    bytes: {"type": "string", "contentEncoding": "base64", "pattern": BASE64},
    datetime: {"type": "string", "format": "date-time", "pattern": TIME},
    timedelta: {"type": "string", "pattern": DURATION},
}


def json_schema(cls: type[Config]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a file whose root is `cls`, as of the current version.

    It holds what JSON Schema can say: types, enumerations, ranges, lengths, patterns, docs, defaults, nodes chosen by
    `__class`, former names (deprecated), and no field beside those. Rules between fields, limits of times and durations
    and the length of bytes are left to `Config.from_json`, which has the last word.
    """
    definitions: dict[str, Any] = {}
    choices = permitted_classes(cls)
    roots = [_object(target, definitions, is_root=True) for target in choices.values()]
    if len(roots) > 1:
        roots = [{"anyOf": [root | {"required": [*root["required"], CLASS_KEY]} for root in roots]}]
    return {"$schema": DIALECT, **roots[0], "$defs": dict(sorted(definitions.items()))}


def _object(cls: ConfigType, definitions: dict[str, Any], *, is_root: bool = False) -> dict[str, Any]:
    info = class_info(cls)
    properties: dict[str, Any] = {CLASS_KEY: {"enum": [info.tag, *info.aliases]}}
    if is_root and info.version is not None:
        properties[VERSION_KEY] = {"const": info.version}
    required, either = [], []
    for name, described in cls.model_fields.items():
        properties[name] = _field(described, definitions)
        former = [known for known, field in info.names.items() if field == name != known]
        properties |= {known: properties[name] | {"deprecated": True} for known in former}
        if described.is_required() and former:
            either.append({"anyOf": [{"required": [known]} for known in (name, *former)]})
        elif described.is_required():
            required.append(name)
    return {
        "title": info.tag,
        "description": " ".join((cls.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "required": required,
        **({"allOf": either} if either else {}),
        "additionalProperties": False,
    }


def _field(described: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _value(described.annotation, definitions, constraints_of(described.metadata))
    if described.description:
        schema["description"] = " ".join(described.description.split())
    return schema if described.is_required() else schema | {"default": default_of(described)}


def _value(annotation: Any, definitions: dict[str, Any], constraints: Mapping[str, Any]) -> dict[str, Any]:
    while get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        constraints = {**constraints, **constraints_of(metadata)}
    if is_class(annotation, Config):
        return _nodes((annotation,), definitions)
    if not is_union(annotation):
        return _plain(annotation, definitions, constraints)
    classes = config_arms(annotation)
    schemas = [_nodes(classes, definitions)] if classes else []
    for arm in get_args(annotation):
        if arm is type(None):
            schemas.append({"type": "null"})
        elif bare(arm) not in classes:
            schemas.append(_value(arm, definitions, constraints))
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _nodes(bases: tuple[ConfigType, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    choices = permitted_classes(*bases)
    for tag, target in choices.items():
        if tag not in definitions:
            definitions[tag] = {}  # known from here on: a class may nest in itself
            definitions[tag] = _object(target, definitions)
    references = [{"$ref": f"#/$defs/{quote(tag.replace('~', '~0').replace('/', '~1'))}"} for tag in choices]
    return references[0] if len(references) == 1 else {"anyOf": [r | {"required": [CLASS_KEY]} for r in references]}


def _plain(annotation: Any, definitions: dict[str, Any], constraints: Mapping[str, Any]) -> dict[str, Any]:
    if is_enumeration(annotation):
        return {"enum": list(permitted(annotation))}
    if get_origin(annotation) in (tuple, frozenset):
        return _list(annotation, definitions, constraints)
    if is_mapping(annotation):
        return _mapping(annotation, definitions, constraints)
    if annotation is SecretRef:
        return {"anyOf": [_reference("env", pattern=ENV_NAME), _reference("file", minLength=1)]}
    if annotation is str:
        return _SCALARS[str] | _lengths(constraints, "Length") | _given(constraints, pattern="pattern")
    if annotation not in (int, float):
        return dict(_SCALARS[annotation])
    limits = {_NUMERIC[name]: limit for name, limit in constraints.items() if abs(limit) != math.inf}
    return _number(limits, constraints) if annotation is float else _SCALARS[int] | limits


def _list(annotation: Any, definitions: dict[str, Any], constraints: Mapping[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if has_fixed_length(annotation):
        entries = [_value(entry, definitions, {}) for entry in get_args(annotation)]
        return schema | {"prefixItems": entries, "items": False, "minItems": len(entries)}
    schema |= {"items": _value(element(annotation, 0), definitions, {})} | _lengths(constraints, "Items")
    return schema | ({"uniqueItems": True} if get_origin(annotation) is frozenset else {})


def _mapping(annotation: Any, definitions: dict[str, Any], constraints: Mapping[str, Any]) -> dict[str, Any]:
    key_type, value_type = get_args(annotation)
    schema = {"type": "object", "additionalProperties": _value(value_type, definitions, {})}
    if bare(key_type) is int:
        schema["propertyNames"] = {"pattern": INT_KEY}
    elif bare(key_type) is not str:
        schema["propertyNames"] = {"enum": [key_text(member) for member in bare(key_type)]}
    return schema | _lengths(constraints, "Properties")


def _number(limits: dict[str, Any], constraints: Mapping[str, Any]) -> dict[str, Any]:
    number = {"type": "number"} | limits
    admitted = [text for text, value in INFINITIES.items() if _is_within(value, constraints)]
    return {"anyOf": [number, {"enum": admitted}]} if admitted else number


def _is_within(value: float, constraints: Mapping[str, Any]) -> bool:
    checks = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
    limits = {name: constraints[name] for name in checks if name in constraints}
    return all(checks[name](value, limit) for name, limit in limits.items())


def _reference(kind: str, **text: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {kind: {"type": "string", **text}},
        "required": [kind],
        "additionalProperties": False,
    }


def _lengths(constraints: Mapping[str, Any], what: str) -> dict[str, Any]:
    return _given(constraints, min_length=f"min{what}", max_length=f"max{what}")


def _given(constraints: Mapping[str, Any], **keywords: str) -> dict[str, Any]:
    return {keyword: constraints[name] for name, keyword in keywords.items() if name in constraints}
