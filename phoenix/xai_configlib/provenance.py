"""Where each value of a config came from."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from xai_configlib.config import Config
from xai_configlib.errors import is_at_or_below, join_path, split_path
from xai_configlib.migrations import migrate
from xai_configlib.registry import Policy, class_info
from xai_configlib.spelling import key_text

Origin = Literal["default", "file", "checkpoint", "migration", "override"]
_ABSENT = object()


def provenance(
    config: Config,
    *,
    file: Mapping[str, Any] | None = None,
    overridden: Collection[str] = (),
    production: Config | None = None,
    production_file: Mapping[str, Any] | None = None,
) -> dict[str, Origin]:
    """Path -> origin, for every leaf of a config that was made from these.

    file             the mapping read from the config file, before overrides; None: there was none
    overridden       the paths that overrides assigned to
    production       the config of the checkpoint that the run begins from; without a file it is what the run inherits,
                     with one only its `from_checkpoint` fields are followed (as in `reconcile` and `inherit`)
    production_file  the mapping that production was read from; None: one that holds every value, of this version
    A leaf is a value that holds no nested config; a list of numbers is one leaf. `migration`: a file of an earlier
    version holds no such value at this place; `default` of an inherited field: production's file left it out.
    """
    overrides = [split_path(path) for path in overridden]
    if production is not None and production_file is None:
        production_file = production.to_dict()
    sources = _Sources(_read(config, file), _read(config, production_file))
    origins = _Origins(overrides, production is not None, production is not None and file is None)
    return dict(origins.below(config, sources, "", (), "must_match"))


class _Given(NamedTuple):
    """What a file holds at one place: as it was written, and as the current version has it."""

    before: Any
    now: Any

    def origin(self, kept: Origin) -> Origin:
        if self.now is _ABSENT:
            return "default"
        return kept if self.before is self.now or self.before == self.now else "migration"

    def entry(self, step: str | int, names: Mapping[str, str]) -> "_Given":
        return _Given(_entry(self.before, step, names), _entry(self.now, step, names))


class _Sources(NamedTuple):
    file: _Given
    production: _Given

    def entry(self, step: str | int, names: Mapping[str, str]) -> "_Sources":
        return _Sources(self.file.entry(step, names), self.production.entry(step, names))


def _read(config: Config, file: Mapping[str, Any] | None) -> _Given:
    return _Given(_ABSENT, _ABSENT) if file is None else _Given(file, migrate(type(config), file))


@dataclass(frozen=True)
class _Origins:
    overrides: list[tuple[str, ...]]
    is_child: bool
    inherits: bool

    def below(
        self, value: Any, sources: _Sources, path: str, steps: tuple[str, ...], policy: Policy
    ) -> Iterator[tuple[str, Origin]]:
        for step, child, child_sources, child_policy in _children(value, sources, policy):
            yield from self.below(child, child_sources, join_path(path, step), (*steps, str(step)), child_policy)
        if not _holds_configs(value) or (not isinstance(value, Config) and not value):
            yield path, self._origin(sources, steps, policy)

    def _origin(self, sources: _Sources, steps: tuple[str, ...], policy: Policy) -> Origin:
        # An override of one entry of a list marks the list, an override of a whole section all that lies in it.
        touched = is_at_or_below(steps, self.overrides) or any(path[: len(steps)] == steps for path in self.overrides)
        if touched:
            return "override"
        if self.is_child and policy == "from_checkpoint":
            return sources.production.origin("checkpoint")
        if sources.file.now is not _ABSENT:
            return sources.file.origin("file")
        return sources.production.origin("checkpoint") if self.inherits and policy != "own" else "default"


def _holds_configs(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return isinstance(value, Config) or (isinstance(value, tuple) and any(map(_holds_configs, value)))


def _children(value: Any, sources: _Sources, policy: Policy) -> Iterator[tuple[str | int, Any, _Sources, Policy]]:
    if isinstance(value, Config):
        info = class_info(type(value))
        for name, own_policy in info.policies.items():
            yield name, getattr(value, name), sources.entry(name, info.names), own_policy or policy
        for name, item in value.kept_unknown.items():
            yield name, item, sources.entry(name, {}), "from_checkpoint"
    elif _holds_configs(value):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for step, item in entries:
            step = step if isinstance(value, tuple) else key_text(step)
            yield step, item, sources.entry(step, {}), policy


def _entry(given: Any, step: str | int, names: Mapping[str, str]) -> Any:
    """What a file holds at a step below `given`: a field under any of its names, an entry by key or index."""
    if isinstance(given, Mapping):
        known = next((key for key in given if names.get(key, key_text(key)) == step), _ABSENT)
        return _ABSENT if known is _ABSENT else given[known]
    if isinstance(given, list | tuple) and isinstance(step, int) and step < len(given):
        return given[step]
    return _ABSENT
