"""Files of earlier versions: each migration turns the mapping of version n into one of version n + 1."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from xai_configlib.errors import ConfigError, Problem, Refused, join_path, shown, split_path
from xai_configlib.registry import VERSION_KEY, ConfigType, class_info, class_of

Step = Callable[[dict[str, Any]], Mapping[str, Any]]
EACH = "*"
_ABSENT = object()

_migrations: dict[tuple[ConfigType, int], Step] = {}


def migration(cls: ConfigType, *, from_version: int) -> Callable[[Step], Step]:
    """Registers how a file of the root class `cls` comes from `from_version` to the next version, before validation.

        @migration(Run, from_version=1)
        def one_to_two(file):
            return in_order(rename("optimizer.lr", "optimizer.learning_rate"), set_default("seed", 0))(file)

    The function gets a mapping of its own, as the file has it (aliases and left-out fields included, `__version` taken
    out), and returns the new one; what it raises makes the file a ConfigError. Migrations run in the order of versions.
    Raises TypeError if the class has no such version to come from, or the migration exists already.
    """
    version = class_info(cls).version
    if version is None or not 1 <= from_version < version:
        raise TypeError(f"{cls.__name__} has no version after {from_version}: raise version= at its @configclass first")
    if (cls, from_version) in _migrations:
        raise TypeError(f"{cls.__name__}: two migrations from version {from_version}")

    def register(step: Step) -> Step:
        _migrations[cls, from_version] = step
        return step

    return register


def migrate(cls: ConfigType, mapping: Mapping[str, Any], source: str = "config") -> dict[str, Any]:
    """The mapping of a file as the current version has it; itself if it is of that version or names no version.

    A file without `__version` is taken for one of the current version: people write such files by today's names.
    Raises ConfigError if the version is newer than this release, or older than its oldest migration.
    """
    file, target = dict(mapping), class_of((cls,), mapping)
    if VERSION_KEY not in file or isinstance(target, Refused):
        return file
    version = file.pop(VERSION_KEY)
    current = _checked_version(target, version, source)
    for number in range(version, current):
        file = _migrated(_migrations[target, number], file, number, source)
    return file | {VERSION_KEY: current}


def in_order(*steps: Step) -> Step:
    """The steps, one after the other."""

    def run(file: dict[str, Any]) -> Mapping[str, Any]:
        for step in steps:
            file = dict(step(file))
        return file

    return run


def rename(old: str, new: str) -> Step:
    """A field gets another name in the same node. `*` in a path stands for each entry of a list or an object."""
    if split_path(old)[:-1] != split_path(new)[:-1]:
        raise TypeError(f"rename({old!r}, {new!r}): the name alone may differ; use move")
    return move(old, new)


def move(old: str, new: str) -> Step:
    """A field goes to another place; nodes on the way are made. Where the file has none, nothing happens.

    Up to the last `*` both paths must be the same. A file that has both is a ConfigError.
    """
    return split(old, {new: lambda value: value})


def split(old: str, new: Mapping[str, Callable[[Any], Any]]) -> Step:
    """A field becomes several: `new` is path -> what its value is, given the old one. Else as `move`."""
    steps, common = _split_at_last_each(old)
    targets = {split_path(path): value_of for path, value_of in new.items()}
    if any(path[:common] != steps[:common] or EACH in path[common:] for path in targets):
        raise TypeError(f"{old!r} -> {', '.join(map(repr, new))}: up to the last * the paths must be the same")

    def change(node: dict[str, Any]) -> None:
        value = _taken(node, steps[common:])
        if value is not _ABSENT:
            for path, value_of in targets.items():
                _put(node, path[common:], value_of(value), old)

    return _at_each(steps[:common], change)


def set_default(path: str, value: Any, *, make_nodes: bool = True) -> Step:
    """Files that leave the field out keep `value`: what it meant before its default changed.

    make_nodes   whether a file that leaves out the whole section gets one with this field; False where the section is
                 null by default. A section that is null stays null.
    """
    steps, common = _split_at_last_each(path)

    def change(node: dict[str, Any]) -> None:
        if make_nodes:
            _parent(node, steps[common:])
        for parent in _nodes(node, steps[common:-1]):
            parent.setdefault(steps[-1], copy.deepcopy(value))

    return _at_each(steps[:common], change)


def _split_at_last_each(path: str) -> tuple[tuple[str, ...], int]:
    """The steps of a path, and how many of them stand up to the last `*`."""
    steps = split_path(path)
    return steps, len(steps) - steps[::-1].index(EACH) if EACH in steps else 0


def _at_each(steps: tuple[str, ...], change: Callable[[dict[str, Any]], None]) -> Step:
    def run(file: dict[str, Any]) -> dict[str, Any]:
        file = copy.deepcopy(file)
        for node in _nodes(file, steps):
            change(node)
        return file

    return run


def _nodes(node: Any, steps: tuple[str, ...]) -> list[dict[str, Any]]:
    """The objects at a path that are there."""
    if not steps:
        return [node] if isinstance(node, dict) else []
    if steps[0] == EACH:
        entries = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        return [found for entry in entries for found in _nodes(entry, steps[1:])]
    return _nodes(node.get(steps[0]), steps[1:]) if isinstance(node, dict) else []


def _taken(node: dict[str, Any], steps: tuple[str, ...]) -> Any:
    for parent in _nodes(node, steps[:-1]):
        return parent.pop(steps[-1], _ABSENT)
    return _ABSENT


def _parent(node: Any, steps: tuple[str, ...]) -> dict[str, Any] | None:
    """The object that holds the field at `steps`, made if it is absent; None if something else stands on the way."""
    for step in steps[:-1]:
        node = node.setdefault(step, {}) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else None


def _put(node: dict[str, Any], steps: tuple[str, ...], value: Any, old: str) -> None:
    parent, path = _parent(node, steps), ""
    for step in steps:
        path = join_path(path, step)
    if parent is None:
        raise ConfigError(Problem("", path, None, f"{old} of an earlier version belongs here, where no object is"))
    if steps[-1] in parent:
        raise ConfigError(Problem("", path, None, f"given beside {old} of an earlier version", "keep one of the two"))
    parent[steps[-1]] = value


def _migrated(step: Step, file: dict[str, Any], number: int, source: str) -> dict[str, Any]:
    try:
        return dict(step(copy.deepcopy(file)))
    except ConfigError as wrong:
        raise ConfigError([Problem(source, p.path, p.value, p.expected, p.fix) for p in wrong.problems]) from None
    except Exception as fault:  # Of the file or of the migration; its words may hold a value, which may be a secret.
        expected = f"the file cannot be brought to version {number + 1}, {type(fault).__name__}"
        fix = f"is it a valid file of version {number}?"
        raise ConfigError(Problem(source, VERSION_KEY, str(number), expected, fix)) from fault


def _checked_version(target: ConfigType, version: Any, source: str) -> int:
    """The current version, if files of `version` can be brought to it."""
    info = class_info(target)
    known = info.version
    if known is None:
        expected, fix = f"{info.tag} has no version", "remove it"
    elif isinstance(version, bool) or not isinstance(version, int) or version < 1:
        expected, fix = "expected an integer from 1 on", f"this release writes {known}"
    elif version > known:
        expected, fix = "the file was written by a newer release", f"this one reads up to version {known}; upgrade it"
    elif gaps := [number for number in range(version, known) if (target, number) not in _migrations]:
        expected = f"this release reads versions {gaps[-1] + 1} to {known}"
        fix = "let an earlier release read and save it first"
    else:
        return known
    raise ConfigError(Problem(source, VERSION_KEY, shown(version), expected, fix))
