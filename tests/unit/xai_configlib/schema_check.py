"""JSON Schema, as much of it as our schemas use, in the plainest way: faults(schema, value) is empty if the value fits."""

import math
import re
from typing import Any
from urllib.parse import unquote

ANNOTATIONS = {"$schema", "$defs", "title", "description", "default", "deprecated", "contentEncoding", "format"}
TYPES = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: is_number(value) and float(value).is_integer(),
    "number": lambda value: is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
CHECKS = {
    "type": lambda value, kind: TYPES[kind](value),
    "enum": lambda value, values: any(same(value, item) for item in values),
    "const": lambda value, item: same(value, item),
    "minimum": lambda value, limit: not is_number(value) or value >= limit,
    "exclusiveMinimum": lambda value, limit: not is_number(value) or value > limit,
    "maximum": lambda value, limit: not is_number(value) or value <= limit,
    "exclusiveMaximum": lambda value, limit: not is_number(value) or value < limit,
    "multipleOf": lambda value, step: not is_number(value) or math.remainder(value, step) == 0,
    "minLength": lambda value, limit: not isinstance(value, str) or len(value) >= limit,
    "maxLength": lambda value, limit: not isinstance(value, str) or len(value) <= limit,
    "pattern": lambda value, pattern: not isinstance(value, str) or re.search(pattern, value) is not None,
    "minItems": lambda value, limit: not isinstance(value, list) or len(value) >= limit,
    "maxItems": lambda value, limit: not isinstance(value, list) or len(value) <= limit,
    "uniqueItems": lambda value, _: not isinstance(value, list)
    or not any(same(value[i], value[j]) for i in range(len(value)) for j in range(i)),
    "minProperties": lambda value, limit: not isinstance(value, dict) or len(value) >= limit,
    "maxProperties": lambda value, limit: not isinstance(value, dict) or len(value) <= limit,
    "required": lambda value, names: not isinstance(value, dict) or all(name in value for name in names),
}  # fmt: skip


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def faults(schema: Any, value: Any, root: Any = None, path: str = "") -> list[str]:
    """PATH: KEYWORD of everything that the value breaks."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return [] if schema else [f"{path}: false"]
    found = []
    for keyword, given in schema.items():
        if keyword in CHECKS:
            found += [] if CHECKS[keyword](value, given) else [f"{path}: {keyword}"]
        elif keyword not in ANNOTATIONS:
            found += list(_applied(schema, keyword, given, value, root, path))
    return found


def _applied(schema: Any, keyword: str, given: Any, value: Any, root: Any, path: str) -> list[str]:
    if keyword == "$ref":
        tag = unquote(given.removeprefix("#/$defs/")).replace("~1", "/").replace("~0", "~")
        return faults(root["$defs"][tag], value, root, path)
    if keyword == "anyOf":
        return [] if any(not faults(choice, value, root, path) for choice in given) else [f"{path}: anyOf"]
    if keyword == "allOf":
        return [fault for part in given for fault in faults(part, value, root, path)]
    if keyword in ("prefixItems", "items"):
        first = len(schema.get("prefixItems", ())) if keyword == "items" else 0
        entries = list(enumerate(value))[first:] if isinstance(value, list) else []
        pairs = [
            (given if keyword == "items" else given[i], item, i)
            for i, item in entries
            if keyword == "items" or i < len(given)
        ]
    elif keyword in ("properties", "additionalProperties"):
        known = schema.get("properties", {})
        items = value.items() if isinstance(value, dict) else ()
        pairs = [
            (known[name] if keyword == "properties" else given, item, name)
            for name, item in items
            if (name in known) == (keyword == "properties")
        ]
    elif keyword == "propertyNames":
        pairs = [(given, name, name) for name in (value if isinstance(value, dict) else ())]
    else:
        raise AssertionError(f"{keyword} is no keyword that our schemas use")
    return [fault for below, item, step in pairs for fault in faults(below, item, root, f"{path}/{step}")]
