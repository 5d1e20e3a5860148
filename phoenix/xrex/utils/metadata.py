"""What a run is and where it comes from: run.json, beside config.json in the run folder and in every checkpoint."""

import hashlib
import json
import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import xai_configlib
from xrex.errors import CheckpointError

VERSION = 1
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pyarrow", "kafka-python", "pydantic")

_SOURCE_SUFFIXES = {".py", ".c", ".cc", ".h"}


class Jsonable(Protocol):
    """Anything whose `to_json` gives its canonical text; every config does."""

    def to_json(self) -> str:
        """The canonical text."""
        ...


@dataclass(frozen=True)
class Environment:
    """What ran the newest start. No host, user or command line is named."""

    code_version: str
    """Package version and the first 12 hex digits of a SHA-256 over our own source files: "0.1.0+3f2a90c1d2e4"."""
    packages: dict[str, str]
    """Versions of Python and of the packages that touch data or arithmetic."""
    devices: str
    """What computes, e.g. "8 x cpu"."""
    hosts: int
    """Number of processes."""

    @classmethod
    def here(cls, *, devices: str, hosts: int) -> "Environment":
        """This installation; the devices and the process count are told, so that JAX need not be imported."""
        return cls(code_version(), package_versions(), devices, hosts)


@dataclass(frozen=True)
class Start:
    """One start of a run: what it began from and what was set for it alone."""

    time: str
    """UTC, ISO 8601."""
    config_sha256: str
    """SHA-256 of the config.json that this start resolved."""
    positions: dict[str, Any]
    """Start positions, an object like positions.json's."""
    end_offsets: dict[str, int] | None = None
    """Under `dataset.stop_at_end`: the fixed end by partition number."""
    per_start: dict[str, Any] = field(default_factory=dict)
    """Values of the fields that may differ at each start, by dotted path."""


@dataclass(frozen=True)
class Parent:
    """The checkpoint that a child began from. It is not read again and may be gone."""

    checkpoint: str
    """`--checkpoint` as it was given."""
    step_path: str
    """The step folder it led to."""
    run_id: str
    """The parent run."""
    config: dict[str, Any] = field(default_factory=dict)
    """What the child inherited from: the step's config.json as this release reads it. Empty: not kept (release 0.1)."""


@dataclass(frozen=True)
class Source:
    """One start of one run of a lineage, and by what it gave fields their values."""

    generation: int
    """0: the first run of the lineage, 1: its child, ..."""
    run_id: str
    name: str
    """trainer.name of that run."""
    time: str
    """UTC, ISO 8601, of the start."""
    code_version: str
    origin: str
    """override, file, migration or default; checkpoint: a run that kept no more about it."""
    given: str = ""
    """The config file as it was given, or the version that a migration came from."""


@dataclass(frozen=True)
class Run:
    """A run's identity, origin and starts: run.json."""

    run_id: str
    lineage_id: str
    """run_id of the first ancestor: the same for every child and grandchild."""
    parent: Parent | None
    name: str
    created_at: str
    """UTC, ISO 8601."""
    environment: Environment
    """Of the newest start."""
    starts: tuple[Start, ...]
    """Oldest first."""
    start_at: str | None = None
    """`--start-at` as given at the first start; it acts there only."""
    provenance: dict[str, str] = field(default_factory=dict)
    """Where each field's value comes from, by dotted path."""
    differences: tuple[dict[str, Any], ...] = ()
    """Table of differences from the parent's config, a row a field."""
    generation: int = 0
    """How many ancestors there are."""
    sources: tuple[Source, ...] = ()
    blame: dict[str, int] = field(default_factory=dict)
    """Who gave each field its value, by dotted path: an index into sources."""
    keep_unknown: bool = False
    """Whether the run carries along fields of a newer release, as --keep-unknown asked."""
    fresh: tuple[str, ...] = ()
    """Patterns of the arrays that its first start did not take from the parent's step, as --fresh gave them."""

    @classmethod
    def first(cls, *, name: str, environment: Environment, start: Start, **origin: Any) -> "Run":
        """A run without a parent: it begins a lineage. origin: start_at, provenance, keep_unknown."""
        run_id = uuid.uuid4().hex
        return cls(run_id, run_id, None, name, utc_now(), environment, (start,), **origin)

    @classmethod
    def child_of(
        cls,
        parent: "Run",
        checkpoint: str,
        step_path: str,
        *,
        name: str,
        environment: Environment,
        start: Start,
        inherited: dict[str, Any] | None = None,
        **origin: Any,
    ) -> "Run":
        """A run that continues from another run's checkpoint.

        inherited  the config of that checkpoint
        origin     start_at, provenance, differences, keep_unknown, fresh
        """
        named = Parent(checkpoint, step_path, parent.run_id, inherited or {})
        run = cls(uuid.uuid4().hex, parent.lineage_id, named, name, utc_now(), environment, (start,), **origin)
        return replace(run, generation=parent.generation + 1)

    def restarted(self, *, environment: Environment, start: Start, provenance: dict[str, str]) -> "Run":
        """The same run with one more start; identity and parent stay."""
        return replace(self, environment=environment, starts=(*self.starts, start), provenance=provenance)

    def blaming(self, anew: Mapping[str, str], earlier: "Run | None", given: Mapping[str, str]) -> "Run":
        """This run, knowing who gave each field of its provenance the value.

        anew     path -> origin of the values that the newest start gave
        earlier  the run that all others come from: the parent, or this one before a restart
        given    origin -> what `Source.given` says of it
        """
        environment, found = self.environment, {}
        for path in self.provenance:
            if path in anew:
                origin = anew[path]
                found[path] = Source(
                    self.generation,
                    self.run_id,
                    self.name,
                    self.starts[-1].time,
                    environment.code_version,
                    origin,
                    given.get(origin, ""),
                )
            elif earlier is not None:
                found[path] = earlier.source_of(path)
        sources = tuple(sorted(set(found.values()), key=lambda source: (source.time, source.generation, source.origin)))
        return replace(self, sources=sources, blame={path: sources.index(source) for path, source in found.items()})

    def source_of(self, path: str) -> Source:
        """Who gave the field its value; this run at its first start where run.json of an earlier release tells no more."""
        if path in self.blame:
            return self.sources[self.blame[path]]
        origin = self.provenance.get(path, "checkpoint")
        code = self.environment.code_version
        return Source(self.generation, self.run_id, self.name, self.starts[0].time, code, origin)

    def to_json(self) -> str:
        """Canonical text: sorted keys, 2 spaces, final newline."""
        document = {"version": VERSION, **asdict(self)}
        document |= document.pop("environment")
        return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "run.json") -> "Run":
        """The run that `to_json` wrote; raises CheckpointError naming the source and the field."""
        try:
            document = json.loads(text)
            if document.pop("version") != VERSION:
                raise ValueError(f"version is not {VERSION}: another release wrote this file")
            environment = {name: document.pop(name) for name in Environment.__dataclass_fields__}
            document["environment"] = Environment(**environment)
            document["parent"] = document["parent"] and Parent(**document["parent"])
            document["starts"] = tuple(Start(**start) for start in document["starts"])
            document["differences"] = tuple(document["differences"])
            document["fresh"] = tuple(document.get("fresh", ()))
            document["sources"] = tuple(Source(**source) for source in document.get("sources", ()))
            return cls(**document)
        except KeyError as error:
            raise CheckpointError(f"{source}: {error.args[0]} is missing") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{source}: not a run.json ({error})") from None


class MetadataRecorder:
    """Holds what every checkpoint and the run folder get: the bytes of config.json and run.json, frozen once."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def record_run(self, run: Run, config: Jsonable) -> None:
        """Fix run and config as they are now. A later change of either object no longer reaches a checkpoint."""
        self._files = {"config.json": config.to_json().encode(), "run.json": run.to_json().encode()}

    @property
    def current_config(self) -> str:
        """The text that will be written as config.json. Raises RuntimeError before `record_run`."""
        return self.files()["config.json"].decode()

    def files(self) -> dict[str, bytes]:
        """File name -> bytes, as `Checkpoints.save(files=...)` takes them. Raises RuntimeError before `record_run`."""
        if not self._files:
            raise RuntimeError("nothing is recorded yet: call record_run(run, config) first")
        return dict(self._files)

    def write(self, run_dir: Path) -> None:
        """Write both into the run folder, each by one rename."""
        for name, content in self.files().items():
            atomic_write(run_dir / name, content)


def atomic_write(path: Path, content: bytes) -> None:
    """Put the bytes at path so that a reader, or a power loss, finds the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_synced(temporary, content)
    os.replace(temporary, path)
    sync_directory(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the directory's entries (created, renamed) are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def code_version() -> str:
    """Package version + the first 12 hex digits of a SHA-256 over the names and bytes of our own source files."""
    import importlib.metadata  # here and below: dozens of milliseconds that reading a run.json must not cost

    digest = hashlib.sha256()
    roots = (Path(__file__).parents[1], Path(xai_configlib.__file__).parent)
    for root in roots:
        for path in sorted(path for path in root.rglob("*") if path.suffix in _SOURCE_SUFFIXES):
            digest.update(f"{root.name}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{importlib.metadata.version('phoenix-recsys')}+{digest.hexdigest()[:12]}"


def package_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that touch data or arithmetic."""
    import importlib.metadata

    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _PACKAGES}}


def config_sha256(config: Jsonable) -> str:
    """SHA-256 of the config's canonical text: what all processes must share."""
    return hashlib.sha256(config.to_json().encode()).hexdigest()


def utc_now() -> str:
    """The time as run.json writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
