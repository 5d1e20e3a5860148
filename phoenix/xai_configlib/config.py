"""The base of config classes, their decorator, and the registry of their tags."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, dataclass_transform, get_args, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from xai_configlib.codec import canonical_json, load_text
from xai_configlib.errors import ConfigError, Problem, did_you_mean, kind_of, shown
from xai_configlib.explain import problems_of
from xai_configlib.secrets import SecretRef
from xai_configlib.strict import (
    Refused,
    check_type,
    describe,
    frozen,
    holds_secret,
    is_class,
    is_mapping,
    parts,
    shaped,
)

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

Policy = Literal["must_match", "may_change", "per_start", "from_checkpoint", "own"]
POLICIES: tuple[str, ...] = get_args(Policy)
CLASS_KEY = "__class"
VERSION_KEY = "__version"
_CONSTRAINTS = {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern"}
_SECRET_NAMES = ("passw", "secret", "credential", "token", "api_key")

T = TypeVar("T")


@overload
def field(*, default: T, policy: Policy | None = None, aliases: tuple[str, ...] = (), **constraints: Any) -> T: ...
@overload
def field(
    *, default_factory: Callable[[], T], policy: Policy | None = None, aliases: tuple[str, ...] = (), **constraints: Any
) -> T: ...
@overload
def field(*, policy: Policy | None = None, aliases: tuple[str, ...] = (), **constraints: Any) -> Any: ...
def field(*, policy: Policy | None = None, aliases: tuple[str, ...] = (), **kwargs: Any) -> Any:
    """A field of a config class; its doc is the string literal below it.

    default, default_factory   value of the field where a file leaves it out; neither: it is required
    policy                     what may become of it in a restart or a child; None: the class's policy
    aliases                    former names, still read, never written
    others                     pydantic's constraints: ge, gt, le, lt, multiple_of, min_length, max_length, pattern
    """
    unknown = kwargs.keys() - _CONSTRAINTS - {"default", "default_factory"}
    if unknown:
        raise TypeError(f"field() knows no {', '.join(sorted(unknown))}")
    if policy is not None and policy not in POLICIES:
        raise TypeError(f"field(policy={policy!r}): the policies are {', '.join(POLICIES)}")
    return Field(json_schema_extra={"policy": policy, "aliases": list(aliases)}, **kwargs)


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
        validate_default=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    @classmethod
    def from_json(
        cls, data: str | bytes | Mapping[str, Any], *, source: str = "config", overridden: Collection[str] = ()
    ) -> Self:
        """The config that a text (JSON, or YAML if it does not begin with "{") or a parsed mapping holds.

        `__class` chooses the class among the registered ones, nothing is imported by name; called on a subclass, only
        that class and those below it are accepted, and where there is one, `__class` may be left out. Problems at or
        below a path in `overridden` name the command line as their source, all others `source`.
        Raises ConfigError with every problem of the text.
        """
        mapping = dict(data) if isinstance(data, Mapping) else load_text(data, source)
        target = class_of(cls, mapping)
        if VERSION_KEY in mapping and not isinstance(target, Refused):
            _check_version(target, mapping.pop(VERSION_KEY), source)
        try:
            return cls.model_validate(mapping)
        except ValidationError as error:
            raise ConfigError(problems_of(error, mapping, source, overridden)) from None

    def to_json(self) -> str:
        """The canonical text: every effective value, `__class` at every node, keys sorted, a final newline."""
        return canonical_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The canonical text's object: dict, list, str, int, float, bool and None only."""
        version = class_info(type(self)).version
        return plain(self) | ({VERSION_KEY: version} if version is not None else {})

    def replace(self, **changes: Any) -> Self:
        """This config with some fields changed. Raises ConfigError as a call of the class does."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        if isinstance(value, Config):
            return handler(value)
        if not isinstance(value, Mapping):
            raise _refusal(
                value if isinstance(value, Refused) else Refused(None, f"expected an object, found {kind_of(value)}")
            )
        target = class_of(cls, value)
        if isinstance(target, Refused):
            raise _refusal(target, CLASS_KEY)
        if target is not cls:
            return target.model_validate(value)
        node = handler(_shaped_fields(cls, value))
        for name in class_info(cls).mapping_fields:
            node.__dict__[name] = frozen(node.__dict__[name])
        return node


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


_registered: dict[type[Config], ClassInfo] = {}
_by_tag: dict[str, type[Config]] = {}

C = TypeVar("C", bound=type[Config])


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
    config type. A field whose type is a nested config class needs no policy: the nested fields have theirs.
    """

    def register(cls: C) -> C:
        info = _inspect(cls, tag or cls.__name__, aliases, policy, version)
        for name in (info.tag, *info.aliases):
            other = _by_tag.get(name, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(
                    f"{cls.__qualname__}: the tag {name!r} belongs to {other.__module__}.{other.__qualname__}"
                )
        _by_tag.update(dict.fromkeys((info.tag, *info.aliases), cls))
        _registered[cls] = info
        return cls

    return register if cls is None else register(cls)


def class_info(cls: type[Config]) -> ClassInfo:
    """What the registry knows of the class. Raises TypeError if it is not registered."""
    if cls not in _registered:
        raise TypeError(f"{cls.__name__}: put @configclass above the class")
    return _registered[cls]


def permitted_classes(base: type[Config]) -> dict[str, type[Config]]:
    """Tag -> class, for every registered class that may stand where `base` is declared.

    A class without fields that has subclasses is only their base, and is not among them.
    """
    below = {cls for cls in _by_tag.values() if issubclass(cls, base)}
    only_bases = {cls for cls in below if not cls.model_fields and any(cls in other.__mro__[1:] for other in below)}
    return dict(sorted((class_info(cls).tag, cls) for cls in below - only_bases))


def class_of(base: type[Config], node: Mapping[str, Any]) -> type[Config] | Refused:
    """The class that a node names, or the only one that may stand where `base` is declared; else what to say."""
    choices = permitted_classes(base)
    if not choices:
        class_info(base)  # raises
    expected = "expected one of " + ", ".join(choices)
    if CLASS_KEY not in node:
        return next(iter(choices.values())) if len(choices) == 1 else Refused(None, f"missing; {expected}")
    tag = node[CLASS_KEY]
    target = _by_tag.get(tag) if isinstance(tag, str) else None
    if target is not None and target in choices.values():
        return target
    known = [name for name, cls in _by_tag.items() if cls in choices.values()]
    return Refused(shown(tag), expected, did_you_mean(tag, known))


def plain(value: Any, without: Policy | None = None) -> Any:
    """A field's value as JSON writes it, leaving out the fields of one policy."""
    if isinstance(value, Config):
        info = class_info(type(value))
        kept = [name for name, policy in info.policies.items() if without is None or policy != without]
        return {CLASS_KEY: info.tag, **{name: plain(getattr(value, name), without) for name in kept}}
    if isinstance(value, tuple):
        return [plain(item, without) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item, without) for key, item in value.items()}
    if isinstance(value, SecretRef):
        return value.to_value()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Path) else value


def _inspect(
    cls: type[Config], tag: str, aliases: tuple[str, ...], policy: Policy | None, version: int | None
) -> ClassInfo:
    names: dict[str, str] = {}
    for name, info in cls.model_fields.items():
        try:
            check_type(info.annotation)
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
    )


def _declared(info: Any) -> dict[str, Any]:
    extra = info.json_schema_extra
    return extra if isinstance(extra, dict) and "policy" in extra else {"policy": None, "aliases": ()}


def _field_policy(cls: type[Config], name: str, info: Any, class_policy: Policy | None) -> Policy | None:
    if declared := _declared(info)["policy"]:
        return declared
    if name not in inspect.get_annotations(cls):
        inherited = [_registered[base].policies for base in cls.__mro__[1:] if base in _registered]
        for policies in inherited:
            if name in policies:
                return policies[name]
    if class_policy is None and not is_class(info.annotation, Config):
        raise TypeError(
            f"{cls.__qualname__}.{name}: declare a policy, at the field or the class: {', '.join(POLICIES)}"
        )
    return class_policy


def _has_source(cls: type) -> bool:
    try:
        return bool(inspect.getsource(cls))
    except (OSError, TypeError):
        return False


def _check_version(target: type[Config], version: Any, source: str) -> None:
    known = class_info(target).version
    if known is None:
        expected, fix = f"{class_info(target).tag} has no version", "remove it"
    elif isinstance(version, bool) or not isinstance(version, int) or version < 1:
        expected, fix = "expected an integer from 1 on", f"this release writes {known}"
    elif version > known:
        expected, fix = "the file was written by a newer release", f"this one reads up to version {known}; upgrade it"
    else:
        return
    raise ConfigError(Problem(source, VERSION_KEY, shown(version), expected, fix))


def _refusal(refused: Refused, *steps: str) -> ValidationError:
    details = InitErrorDetails(type=PydanticCustomError("refused", "refused"), loc=steps, input=refused)
    return ValidationError.from_exception_data("config", [details])


def _shaped_fields(cls: type[Config], value: Mapping[str, Any]) -> dict[str, Any]:
    info = class_info(cls)
    data: dict[str, Any] = {}
    for key, item in value.items():
        name = info.names.get(key)
        if key == CLASS_KEY:
            continue
        if name is None:
            data[str(key)] = _unknown(info, key, item)
        elif name in data:
            data[key] = Refused(None, f"the field {name} is given twice, by two of its names", f"keep {name}")
        else:
            data[name] = shaped(cls.model_fields[name].annotation, item)
    for name, described in cls.model_fields.items():
        if described.is_required() and name not in data:
            data[name] = Refused(None, f"missing; expected {describe(described.annotation)}")
    return data


def _unknown(info: ClassInfo, key: Any, item: Any) -> Refused:
    if key == VERSION_KEY:
        return Refused(shown(item), "stands at the root of a file only", "remove it")
    # A secret under a misspelt name must not be echoed either.
    may_be_secret = info.holds_secrets or any(word in str(key).lower() for word in _SECRET_NAMES)
    return Refused(None if may_be_secret else shown(item), "unknown field", did_you_mean(key, info.names))
