"""Where each value of a config came from."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from xai_configlib.config import Config
from xai_configlib.errors import is_at_or_below, join_path, split_path
from xai_configlib.migrations import migrate
from xai_configlib.registry import Policy, class_info
from xai_configlib.spelling import key_text

Origin = Literal["default", "file", "checkpoint", "override"]
_ABSENT = object()


def provenance(
    config: Config,
    *,
    file: Mapping[str, Any] | None = None,
    overridden: Collection[str] = (),
    production: Config | None = None,
) -> dict[str, Origin]:
    """Path -> origin, for every leaf of a config that was made from these.

    file         the mapping read from the config file, before overrides; None: there was none
    overridden   the paths that overrides assigned to
    production   the config of the checkpoint that the run begins from; without a file it is what the run inherits,
                 with one only its `from_checkpoint` fields are followed (as in `reconcile` and `inherit`)
    A leaf is a value that holds no nested config; a list of numbers is one leaf.
    """
    overrides = [split_path(path) for path in overridden]
    inherits = production is not None and file is None
    given = _ABSENT if file is None else migrate(type(config), file)
    return dict(_Origins(overrides, production is not None, inherits).below(config, given, "", (), "must_match"))


@dataclass(frozen=True)
class _Origins:
    overrides: list[tuple[str, ...]]
    is_child: bool
    inherits: bool

    def below(
        self, value: Any, given: Any, path: str, steps: tuple[str, ...], policy: Policy
    ) -> Iterator[tuple[str, Origin]]:
        for step, child, child_given, child_policy in _children(value, given, policy):
            yield from self.below(child, child_given, join_path(path, step), (*steps, str(step)), child_policy)
        if not _holds_configs(value) or (not isinstance(value, Config) and not value):
            yield path, self._origin(given, steps, policy)

    def _origin(self, given: Any, steps: tuple[str, ...], policy: Policy) -> Origin:
        # An override of one entry of a list marks the list, an override of a whole section all that lies in it.
        touched = is_at_or_below(steps, self.overrides) or any(path[: len(steps)] == steps for path in self.overrides)
        if touched:
            return "override"
        if self.is_child and policy == "from_checkpoint":
            return "checkpoint"
        if given is not _ABSENT:
            return "file"
        return "checkpoint" if self.inherits and policy != "own" else "default"


def _holds_configs(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return isinstance(value, Config) or (isinstance(value, tuple) and any(map(_holds_configs, value)))


def _children(value: Any, given: Any, policy: Policy) -> Iterator[tuple[str | int, Any, Any, Policy]]:
    if isinstance(value, Config):
        info = class_info(type(value))
        by_name = {info.names.get(key): item for key, item in given.items()} if isinstance(given, Mapping) else {}
        for name, own_policy in info.policies.items():
            yield name, getattr(value, name), by_name.get(name, _ABSENT), own_policy or policy
        for name, item in value.kept_unknown.items():
            yield name, item, _entry(given, name), "from_checkpoint"
    elif _holds_configs(value):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for step, item in entries:
            yield step if isinstance(value, tuple) else key_text(step), item, _entry(given, step), policy


def _entry(given: Any, step: Any) -> Any:
    if isinstance(given, Mapping):
        return given.get(step, given.get(key_text(step), _ABSENT))
    if isinstance(given, list | tuple) and isinstance(step, int) and step < len(given):
        return given[step]
    return _ABSENT
