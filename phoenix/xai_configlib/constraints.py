"""Limits of a field's values: which there are, which type each fits, and what a declaration says of them."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, get_args, get_origin

from xai_configlib.annotations import arms, bare, is_mapping, name_of

_ORDERED = (int, float, datetime, timedelta)
_FITTING: dict[str, tuple[Any, ...]] = {
    "ge": _ORDERED,
    "gt": _ORDERED,
    "le": _ORDERED,
    "lt": _ORDERED,
    "multiple_of": (int, float),
    "min_length": (str, bytes, tuple, frozenset),
    "max_length": (str, bytes, tuple, frozenset),
    "pattern": (str,),
}
CONSTRAINTS = tuple(_FITTING)


def constraints_of(metadata: Iterable[Any]) -> dict[str, Any]:
    """Constraint -> limit, from what pydantic keeps of a field or of `Annotated`."""
    found: dict[str, Any] = {}
    for item in metadata:
        found |= constraints_of(getattr(item, "metadata", ()))  # a Field(...) inside Annotated
        found |= {name: limit for name in CONSTRAINTS if (limit := getattr(item, name, None)) is not None}
    return found


def check_constraints(annotation: Any, metadata: Iterable[Any] = ()) -> None:
    """Raises TypeError if a limit, of the type or inside it, is none of its type: pydantic would trip over each value."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = (*metadata, *more)
    kind = bare(annotation)
    for name in constraints_of(metadata):
        if len(arms(annotation)) > 1:
            raise TypeError("constrain the arms of the union, not the union: Annotated[int, Field(ge=0)] | str")
        fits = (get_origin(kind) or kind) in _FITTING[name] or (name.endswith("_length") and is_mapping(kind))
        if not fits:
            raise TypeError(f"{name} is no limit of {name_of(kind)}")
    if get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            check_constraints(argument)
