"""The base of config classes."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, dataclass_transform

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, ValidationInfo, model_validator
from pydantic_core import CoreSchema

from xai_configlib.annotations import words_of
from xai_configlib.arm import adapted
from xai_configlib.codec import canonical_json, load_text
from xai_configlib.declare import field
from xai_configlib.errors import ConfigError, Problem, Refused, join_path, kind_of, shown
from xai_configlib.explain import problems_of, refusal, without_values
from xai_configlib.migrations import migrate
from xai_configlib.registry import CLASS_KEY, VERSION_KEY, Policy, class_info, class_of
from xai_configlib.spelling import json_kind, key_text, written
from xai_configlib.strict import FrozenDict, frozen, shaped
from xai_configlib.unknown import refusal_of

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

Unknown = Literal["error", "keep"]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class _ConfigMeta(ModelMetaclass):
    """Makes the call of a config class raise ConfigError; nested nodes are built by pydantic and do not pass here."""

    if not TYPE_CHECKING:  # type checkers see the fields as parameters

        def __call__(cls, **values: Any) -> Any:  # noqa: N805
            try:
                return super().__call__(**{CLASS_KEY: class_info(cls).tag, **values})
            except ValidationError as error:
                raise ConfigError(problems_of(error, values, cls.__name__)) from None


class Config(BaseModel, metaclass=_ConfigMeta):
    """Base of every config class: frozen, keyword-only, strictly typed, read from and written to canonical JSON.

    Calling a class checks the values in the same way as reading a file, and raises ConfigError with every problem.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    _unknown: FrozenDict = PrivateAttr(default_factory=FrozenDict)

    @classmethod
    def from_json(
        cls,
        data: str | bytes | Mapping[str, Any],
        *,
        source: str = "config",
        overridden: Collection[str] = (),
        unknown: Unknown = "error",
        say: Callable[[str], object] = warnings.warn,
    ) -> Self:
        """The config that a text (JSON, or YAML if it does not begin with "{") or a parsed mapping holds.

        `__class` chooses the class among the registered ones, nothing is imported by name; called on a subclass, only
        that class and those below it are accepted, and where there is one, `__class` may be left out. A file of an
        earlier `__version` is migrated first; one without is of the current version. Problems at or below a path in
        `overridden` name the command line as their source, all others `source`.

        unknown   what becomes of fields that the classes do not know: "error", or "keep" for a config of a newer
                  release: they stay beside the config, to_json writes them again at the same place, and `say` gets a
                  line for each. What may be a literal secret is never kept. An unknown class is an error all the same.
        Raises ConfigError with every problem of the text.
        """
        mapping = migrate(cls, data if isinstance(data, Mapping) else load_text(data, source), source)
        if not isinstance(class_of((cls,), mapping), Refused):
            mapping.pop(VERSION_KEY, None)
        try:
            config = cls.model_validate(mapping, context=unknown)
        except ValidationError as error:
            raise ConfigError(problems_of(error, mapping, source, overridden)) from None
        except RecursionError:  # of a class that nests in itself
            raise ConfigError(Problem(source, "", None, "is nested too deep to read; is this a config?")) from None
        for path, value in unknown_fields(config):
            say(str(Problem(source, path, shown(value), "unknown field, kept as it is")))
        return config

    def to_json(self) -> str:
        """The canonical text: every effective value, `__class` at every node, keys sorted, a final newline."""
        return canonical_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The canonical text's object: dict, list, str, int, float, bool and None only."""
        version = class_info(type(self)).version
        return plain(self) | ({VERSION_KEY: version} if version is not None else {})

    def replace(self, **changes: Any) -> Self:
        """This config with some fields changed. Raises ConfigError as a call of the class does."""
        changed: Any = type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)
        changed._unknown = self._unknown
        return changed

    @property
    def kept_unknown(self) -> Mapping[str, Any]:
        """The unknown fields of this node that were kept, by name; empty unless it was read with unknown="keep"."""
        return self._unknown

    def __eq__(self, other: object) -> bool:
        """Whether both are of one class and write the same text: 1 and true, or 0.0 and -0.0, differ."""
        if self is other or not isinstance(other, Config):
            return self is other
        return type(self) is type(other) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in type(self).model_fields), self._unknown))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        return adapted(handler(source))

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
        if isinstance(value, Config):
            return handler(value)
        if not isinstance(value, Mapping):
            raise refusal(
                value if isinstance(value, Refused) else Refused(None, f"expected an object, found {kind_of(value)}")
            )
        target = class_of((cls,), value)
        if isinstance(target, Refused):
            raise refusal(target)
        if target is not cls:
            return target.model_validate(value, context=info.context)
        data, kept = _shaped_fields(cls, value, keep=info.context == "keep")
        described = class_info(cls)
        try:
            node = handler(data)
        except ValidationError as error:
            raise (without_values(error) if described.holds_secrets else error) from None
        node._unknown = kept
        for name in described.mapping_fields:
            node.__dict__[name] = frozen(node.__dict__[name])
        return node


def plain(value: Any, without: Policy | None = None) -> Any:
    """A field's value as JSON writes it, leaving out the fields of one policy."""
    if isinstance(value, Config):
        info = class_info(type(value))
        names = [name for name, policy in info.policies.items() if without is None or policy != without]
        fields = {name: plain(getattr(value, name), without) for name in names}
        return {CLASS_KEY: info.tag, **fields, **plain(value.kept_unknown)}
    if isinstance(value, Mapping):
        return {key_text(key): plain(item, without) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(plain, value), key=lambda item: (json_kind(item), item))
    return [plain(item, without) for item in value] if isinstance(value, tuple) else written(value)


def unknown_fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of every field that was kept without being known."""
    if isinstance(value, Config):
        for name, item in value.kept_unknown.items():
            yield join_path(path, name), plain(item)
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name), join_path(path, name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from unknown_fields(item, join_path(path, key_text(key)))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from unknown_fields(item, join_path(path, index))


def _shaped_fields(cls: type[Config], value: Mapping[str, Any], *, keep: bool) -> tuple[dict[str, Any], FrozenDict]:
    """What pydantic shall validate, and beside it the unknown fields that are kept."""
    info = class_info(cls)
    data: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for key, item in value.items():
        name = info.names.get(key)
        if key == CLASS_KEY:
            continue
        if name is None:
            if refused := refusal_of(info, key, item, keep=keep):
                data[str(key).encode("utf-8", "backslashreplace").decode()] = refused
            else:
                kept[key] = item
        elif name in data:
            data[key] = Refused(None, f"the field {name} is given twice, by two of its names", f"keep {name}")
        else:
            data[name] = shaped(cls.model_fields[name].annotation, item)
    for name, described in cls.model_fields.items():
        if name not in data:
            data[name] = _default(described)
    return data, frozen(kept)


def _default(described: Any) -> Any:
    if described.is_required():
        return Refused(None, f"missing; expected {words_of(described.annotation)}")
    return shaped(described.annotation, described.get_default(call_default_factory=True, validated_data={}))
