"""How what `strict` decides reaches pydantic: the arm of a union, the member that is a key, a set given as a list."""

from dataclasses import dataclass
from typing import Any

from pydantic_core import CoreSchema, core_schema

ARM_MARK = "\0"


@dataclass(frozen=True)
class Arm:
    """A value of a union, with the label of the type that it was read as."""

    label: str
    value: Any


class Key(str):
    """The text of a key in an object of Enum keys, with the member that it stands for; pydantic's paths show the text."""

    member: Any


def key_for(text: str, member: Any) -> Key:
    """The text as a key that carries the member, or Refused."""
    key = Key(text)
    key.member = member
    return key


def adapted(schema: Any) -> Any:
    """pydantic's schema of a config class, such that unions obey `Arm`, keys `Key`, and sets are read from lists."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(adapted, schema))
    if not isinstance(schema, dict):
        return schema
    schema = {key: item if key == "default" else adapted(item) for key, item in schema.items()}
    keys = schema.get("keys_schema")
    if schema.get("type") == "dict" and keys["type"] not in ("str", "int", "function-before"):
        return schema | {"keys_schema": core_schema.no_info_before_validator_function(_member_of_key, keys)}
    if schema.get("type") == "frozenset":
        return schema | {"strict": False}  # of the list only: pydantic then names the entry that is wrong
    if schema.get("type") != "union":
        return schema
    choices: dict[Any, CoreSchema] = {
        label_of(index): core_schema.no_info_before_validator_function(_value_of_arm, choice)
        for index, choice in enumerate(schema["choices"])
    }
    return core_schema.tagged_union_schema(choices, _label_of_arm)


def label_of(index: int) -> str:
    """The label of a union's arm; no field has such a name."""
    return f"{ARM_MARK}{index}"


def _label_of_arm(value: Any) -> str | None:
    return value.label if isinstance(value, Arm) else None


def _value_of_arm(arm: Arm) -> Any:
    return arm.value


def _member_of_key(key: Any) -> Any:
    return key.member if isinstance(key, Key) else key
