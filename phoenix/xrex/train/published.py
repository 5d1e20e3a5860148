"""Reads a config.json that the published production trainer wrote, and says what became of every value in it.

Such a file is a tree of objects, each with a `__class` that is a dotted Python path; enums stand by name, tuples as lists,
integer keys as text, and values that only the run needed stand among the settings. Nothing is imported by name: a
`__class` is compared as text, by its last dotted part. A file without `dataset` is read as if it were that section.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from xai_configlib import ConfigError, Problem
from xai_configlib.errors import is_at_or_below, join_path, kind_of, shown, split_path
from xrex.models.config import RankerConfig
from xrex.schema.specs import TableSpec
from xrex.train.config import TrainerConfig

TRAINERS = ("RecsysTrainer", "GenRecsTrainer", "SidRetrievalTrainer")
RANKER = "RecsysAggregatedModelConfig"
CONSTANT = "ConstantSampleSchedule"
OURS = ("TrainerConfig", "DatasetConfig")
RUNTIME = ("offset_ptr", "seek_to_offset", "offsets_to_commit", "is_alive", "_logged_schema")
PASSWORD_ENV, TOKEN_ENV = "KAFKA_PASSWORD", "KAFKA_TOKEN"
MAX_ACTIONS = 63
"""An event's actions are the bits of one signed 64-bit number (dataset.actions)."""

Verdict = Literal["taken", "translated", "ignored"]

_ABSENT: Any = object()
_SECRET_NAMES = ("secret", "credential", "token", "api_key", "private_key", "ssl_key", "tls_key")
_SCHEDULE = "lr_schedule_in_samples_config"
_TRANSFORMER = "model_config.model_config"
_HASH_KEYS = "hash_table.hash_keys"
_OTHER_HASH = "ids are hashed by splitmix64 here, by a linear congruence there: trained tables cannot be carried over"
_FEATURES = {
    "user": (("user", "user", "user"),),
    "item": (("past_item", "history", "history_item"), ("item", "candidate", "item")),
    "author": (("past_author", "history", "history_author"), ("author", "candidate", "author")),
    "ip": (("ip", "user", "ip"),),
}
"""Table of the published trainer -> (name, group, column) of the features that look into it here."""
_SECURITY = {
    "security_protocol": "protocol",
    "sasl_mechanism": "sasl_mechanism",
    "sasl_plain_username": "username",
    "ssl_cafile": "ca_file",
}
"""Setting of the published dataset -> field of dataset.log.security."""
_DENSE = {
    "b1": "b1",
    "b2": "b2",
    "epsilon": "eps",
    "weight_decay": "weight_decay",
    "clip_norm": "clip_by_global_norm",
}
_SPARSE = {"learning_rate": "learning_rate", "epsilon": "eps", "initial_accumulator": "initial_accumulator_value"}
"""Field of optimizer.dense and optimizer.sparse -> setting of the published optimizers."""
_MODEL = {
    "num_layers": ("model_config.num_layers", "num_layers"),
    "width": ("model_config.emb_size", "emb_size", "feature_prep.emb_size"),
    "num_heads": ("model_config.attn_config.num_q_heads", "attn_config.num_q_heads", "num_q_heads"),
    "num_kv_heads": ("model_config.attn_config.num_kv_heads", "attn_config.num_kv_heads", "num_kv_heads"),
    "feedforward_multiplier": ("model_config.ffn_config.widening_factor", "ffn_config.widening_factor"),
}
"""Field of model -> where it stands below the published model_config."""
_FEATURE_ORDER = ("user", "ip", "past_item", "past_author", "item", "author")
_WHY_IGNORED = {
    "auto_offset_reset": "positions come from checkpoints; a first start says --start-at",
    "gated_mlp": "the feed-forward part has no gate here",
    "group_id": "no consumer group is joined: positions come from checkpoints",
    "half_life_steps": "a row's accumulator does not decay here",
    "lazy_decay": "a row's accumulator does not decay here",
    "load": "its checkpoints cannot be restored here",
    "num_continuous_actions": "there are no heads for continuous values here",
    "num_devices_per_node": "a run takes the devices that it finds",
    "num_devices_per_process": "a run takes the devices that it finds",
    "precision_level": "only level 2 (float32 weights, bfloat16 activations) has a counterpart",
} | {
    f"{entity}_{part}": "of the linear congruential hash; splitmix64 needs none"
    for entity in _FEATURES
    for part in ("biases", "modulus")
}

_WHY_CLASS = {
    (): "the class that wrote the file",
    ("dataset",): "rows are those of docs/data.md here, not those it reads",
}


@dataclass(frozen=True)
class Line:
    """What became of one value of the published file. Values are not shown: one may be a secret."""

    source: str
    """Dotted path in the published file."""
    verdict: Verdict
    """taken: the same value with the same meaning. translated: see `why`. ignored: nothing of it is used."""
    target: str
    """Dotted path in our config; "" if ignored."""
    why: str
    """How it was translated, or why it was ignored; "" if taken."""


@dataclass(frozen=True)
class Imported:
    """A published file as a config of ours."""

    config: TrainerConfig
    lines: tuple[Line, ...]
    """One for every value of the file, in its order; a list of plain values is one value."""


def import_published(mapping: Mapping[str, Any], source: str) -> Imported:
    """The config that a parsed config.json of the published trainer stands for here.

    source  what problems call the file
    Raises ConfigError, with all problems, if the mapping is no such file or cannot be expressed here.
    """
    _refuse_other_files(mapping, source)
    file = _File(mapping, source)
    _read_dataset(file)
    if file.dataset:
        _read_trainer(file)
        _read_optimizers(file)
        _read_model(file)
    config = file.config()
    return Imported(config, tuple(file.lines()))


class _File:
    """A published file while it is read: the values in it, what became of each, and what our config gets."""

    def __init__(self, mapping: Mapping[str, Any], source: str):
        self._mapping = mapping
        self._source = source
        self._leaves = dict(_leaves(mapping))
        self._lines: dict[str, Line] = {}
        self._values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._problems: list[Problem] = []
        self._refused: list[Sequence[str]] = []
        self.dataset = "dataset." if "dataset" in mapping else ""
        """What the path of a dataset's value begins with."""
        self.secrets = [path for path, value in self._leaves.items() if _may_be_secret(path, value)]
        """Paths of values that are neither shown nor taken."""
        for path in self.secrets:
            self.ignore(path, "may be a secret: never carried over")

    def at(self, path: str) -> Any:
        """The value, or object, at a path of plain names; _ABSENT if there is none or it may be a secret."""
        node: Any = self._mapping
        for step in path.split("."):
            if not isinstance(node, Mapping) or step not in node:
                return _ABSENT
            node = node[step]
        return _ABSENT if path in self.secrets else node

    def stands(self, path: str) -> bool:
        """Whether there is a value, null included."""
        return self.at(path) is not _ABSENT

    def given(self, path: str) -> bool:
        """Whether there is a value, and it is not null."""
        return self.stands(path) and self.at(path) is not None

    def first(self, *paths: str) -> str | None:
        """The first of these paths at which a value is given; those at the others are its copies."""
        found = next(filter(self.given, paths), None)
        for path in paths:
            if path != found and self.stands(path):
                same = found is not None and _same(self.at(path), self.at(found))
                self.ignore(path, _why_not_read(found, same) if found else "null: the default stays")
        return found

    def take(self, target: str, *paths: str, why: str = "", needed: str = "") -> None:
        """Puts the first of these values that is given at `target`, as it is; the config's own checks judge it.

        why     how it is translated; "": it means the same there
        needed  what it is, where our config cannot do without
        """
        if found := self.first(*paths):
            self.put(target, self.at(found), found, why)
        elif needed:
            self.refuse(paths[0], target, f"missing; expected {needed}")

    def put(self, target: str, value: Any, path: str, why: str = "") -> None:
        """`value`, which comes from `path`, is what `target` gets."""
        self.set(target, value, path)
        self.note(path, "translated" if why else "taken", target, why)

    def set(self, target: str, value: Any, path: str | None = None) -> None:
        """What `target` gets, without a line of the report; problems with it name `path`."""
        self._values[target] = value
        if path is not None:
            self._origins[target] = path

    def blame(self, target: str, path: str) -> None:
        """Problems with `target` name `path`."""
        self._origins[target] = path

    def ignore(self, path: str, why: str) -> None:
        """The value at `path` is not used."""
        self.note(path, "ignored", "", why)

    def note(self, path: str, verdict: Verdict, target: str, why: str) -> None:
        """The line of the report for `path`."""
        self._lines[path] = Line(path, verdict, target, why)

    def refuse(self, path: str, target: str, expected: str, fix: str = "", *, may_show: bool = True) -> None:
        """`target` cannot get what stands, or does not stand, at `path`."""
        self._refused.append(split_path(target))
        value = shown(self.at(path)) if may_show and self.stands(path) else None
        fix = fix or _fix(target)
        self._problems.append(Problem(self._source, path, value, expected, fix))

    def below(self, path: str) -> Iterator[str]:
        """Paths of the values below an object."""
        return (leaf for leaf in self._leaves if leaf.startswith(f"{path}."))

    def config(self) -> TrainerConfig:
        """What was put together. Raises ConfigError with every problem found so far and every one that it has."""
        try:
            config = TrainerConfig.from_json(_nested(self._values), source=self._source)
        except ConfigError as error:
            # What is missing or wrong in the published file was said already, in its own words.
            found = [self._in_their_words(problem) for problem in error.problems if not self._is_known(problem.path)]
            once = {(problem.path, problem.expected): problem for problem in reversed(found)}  # one width, many tables
            raise ConfigError([*self._problems, *reversed(once.values())]) from None
        if self._problems:
            raise ConfigError(self._problems)
        return config

    def lines(self) -> Iterator[Line]:
        """One line for every value of the file, in its order."""
        for path, value in self._leaves.items():
            yield self._lines.get(path) or Line(path, "ignored", "", _why_ignored(path, value))

    def _is_known(self, target: str) -> bool:
        # Without a path it is a check of sections against each other, moot while one of them is incomplete.
        return is_at_or_below(split_path(target), self._refused) if target else bool(self._refused)

    def _in_their_words(self, problem: Problem) -> Problem:
        sections = {"model": "model_config", "dataset": self.dataset.rstrip(".")}
        path = self._origins.get(problem.path, sections.get(problem.path, problem.path))
        return Problem(problem.source, path, problem.value, problem.expected, problem.fix or _fix(problem.path))


def _refuse_other_files(mapping: Mapping[str, Any], source: str) -> None:
    trainer = _class_name(mapping.get("__class"))
    if trainer in OURS:
        words = f"this is a config of Phoenix already ({trainer})"
        raise ConfigError(Problem(source, "__class", None, words, "give it to --config"))
    needed = "expected an object with topic_name and num_kafka_partitions"
    if "dataset" in mapping:
        if not isinstance(mapping["dataset"], Mapping):
            found, fix = kind_of(mapping["dataset"]), "give a config.json of the published trainer"
            raise ConfigError(Problem(source, "dataset", found, needed, fix))  # the value itself may be a secret
    elif trainer in TRAINERS:
        raise ConfigError(Problem(source, "dataset", None, f"missing; {needed}", "give the whole config.json"))
    elif "topic_name" not in mapping:
        words = f"no config.json of the published trainer: it has no __class that ends in {' or '.join(TRAINERS)}, no dataset"
        raise ConfigError(Problem(source, "", None, words, "give the config.json of one of its checkpoints"))


# The sections


def _read_dataset(file: _File) -> None:
    dataset = file.dataset
    file.take("dataset.topic_name", f"{dataset}topic_name", needed="the name of the topic to read")
    file.take("dataset.num_kafka_partitions", f"{dataset}num_kafka_partitions", needed="the partitions of the topic")
    file.take(
        "dataset.max_history",
        f"{dataset}history_seq_len",
        "model_config.history_seq_len",
        f"{_TRANSFORMER}.attn_config.history_seq_len",
    )
    file.take("dataset.max_candidates", f"{dataset}candidate_seq_len", "model_config.candidate_seq_len")
    _read_actions(file)
    _read_tables(file)
    _read_log(file)


def _read_actions(file: _File) -> None:
    """The number of logits becomes that many label columns."""
    target = "dataset.actions"
    path = file.first(
        f"{file.dataset}output_vocab_size",
        f"{file.dataset}hash_table.output_vocab_size",
        f"{_TRANSFORMER}.output_vocab_size",
        "model_config.hash_table.output_vocab_size",
    )
    if path is None:
        file.refuse(f"{file.dataset}output_vocab_size", target, "missing; expected the number of actions")
    elif not _is_count(file.at(path)):
        file.refuse(path, target, "expected an integer from 1 on")
    elif file.at(path) == MAX_ACTIONS + 1:
        # Every published ranker has 64 logits: actions are numbered from 1, and logit 0 belongs to none of them.
        names = [f"action_{index:02}" for index in range(1, MAX_ACTIONS + 1)]
        file.put(target, names, path, f"label columns {names[0]} to {names[-1]}, of its logits 1 to 63; 0 is no action")
    elif file.at(path) > MAX_ACTIONS:
        expected = f"at most {MAX_ACTIONS} actions fit here, they are the bits of one int64"
        file.refuse(path, target, expected, f"write {MAX_ACTIONS} or fewer in a copy of the file, and label only those")
    else:
        names = [f"action_{index:02}" for index in range(file.at(path))]
        file.put(target, names, path, f"label columns {names[0]} to {names[-1]}, in the order of its logits")


def _read_tables(file: _File) -> None:
    """Vocabulary sizes become tables, and each table the features of our row convention that look into it."""
    places = [f"{file.dataset}{_HASH_KEYS}", f"model_config.{_HASH_KEYS}"]
    keys = next((path for path in places if isinstance(file.at(path), Mapping)), None)
    if keys is None:
        file.refuse(places[0], "dataset.tables", "missing; expected an object with item_id_table_size and the like")
        file.set("dataset.features", [])
        return
    for copy in file.below(places[1]) if keys != places[1] else ():
        same = _same(file.at(copy), file.at(keys + copy.removeprefix(places[1])))
        file.ignore(copy, _why_not_read(keys, same))
    entities = [entity for entity in _FEATURES if _has_table(file, f"{keys}.{entity}_id_table_size")]
    if not {"item", "author"} & set(entities):
        expected = "neither this nor author_id_table_size gives candidates a table; expected an integer from 1 on"
        file.refuse(f"{keys}.item_id_table_size", "dataset.features", expected)
    width = file.first("model_config.emb_table_width", "model_config.feature_prep.emb_table_width")
    if width:
        file.note(width, "taken", "dataset.tables[*].embedding_dim", "")
    file.set("dataset.tables", [_table(file, keys, width, *numbered) for numbered in enumerate(entities)])
    file.set("dataset.features", _features(entities))


def _table(file: _File, keys: str, width: str | None, index: int, entity: str) -> dict[str, Any]:
    """One table: its rows and hashes from `keys`, its width from `width` or, where the file has none, from our model."""
    table, size, scales = f"dataset.tables[{index}]", f"{keys}.{entity}_id_table_size", f"{keys}.{entity}_hash_scales"
    file.note(size, "translated", f"{table}.num_embeddings", f"rows of {entity}s; {_OTHER_HASH}")
    file.blame(f"{table}.num_embeddings", size)
    if width:
        file.blame(f"{table}.embedding_dim", width)
    return {
        "name": f"{entity}s",
        "num_embeddings": file.at(size),
        "embedding_dim": file.at(width) if width else RankerConfig().width,
        "salts": _salts(file, scales, f"{table}.salts"),
    }


def _has_table(file: _File, path: str) -> bool:
    if _is_zero(file.at(path)):
        file.ignore(path, "0: no table, and no feature")
    elif file.stands(path) and not file.given(path):
        file.ignore(path, "null: no table, and no feature")
    return file.given(path) and not _is_zero(file.at(path))


def _salts(file: _File, path: str, target: str) -> list[int]:
    """As many of our salts as there are hashes, which is two."""
    ours, scales = list(TableSpec.model_fields["salts"].default), file.at(path)
    if not file.given(path):
        return ours
    if not isinstance(scales, list | tuple):
        file.refuse(path, target, "expected a list, one number a hash")
        return ours
    salts = ours[: len(scales)]
    file.note(path, "translated", target, f"{len(salts)} hashes an id for its {len(scales)}; {_OTHER_HASH}")
    return salts


def _features(entities: Sequence[str]) -> list[dict[str, Any]]:
    made = {
        name: {"name": name, "group": group, "column": column, "table": f"{entity}s", "required": entity != "ip"}
        for entity in entities
        for name, group, column in _FEATURES[entity]
    }
    return [made[name] for name in _FEATURE_ORDER if name in made]


def _read_log(file: _File) -> None:
    """Brokers and how they are spoken to; without brokers the source stays what it is by default."""
    target, path = "dataset.log.bootstrap_servers", f"{file.dataset}bootstrap_servers"
    servers = file.at(path)
    if servers in ("", None, _ABSENT):
        for leaf in (f"{file.dataset}{name}" for name in (*_SECURITY, "bootstrap_servers")):
            if file.stands(leaf):
                file.ignore(leaf, "no broker is named: dataset.log stays a DirectoryLog, give it a KafkaLog")
        return
    if isinstance(servers, str) and "@" in servers:  # user:password@host, which a refusal further on would show
        file.refuse(path, target, "expected HOST:PORT[,HOST:PORT], without user and password", may_show=False)
        return
    file.set("dataset.log.__class", "KafkaLog")
    clean = re.sub(r"\s*,\s*", ",", servers.strip()) if isinstance(servers, str) else servers
    file.put(target, clean, path, "" if clean == servers else "without the blanks")
    _read_security(file)


def _read_security(file: _File) -> None:
    """The published trainer speaks SASL_SSL alone, with a password from its environment and certificates unchecked."""
    ours, theirs = "dataset.log.security", {name: f"{file.dataset}{name}" for name in _SECURITY}
    for path in theirs.values():
        if file.at(path) == "":
            file.ignore(path, f"empty: {ours} keeps its default, which SASL may refuse at the start")
    given = {name: path for name, path in theirs.items() if file.given(path) and file.at(path) != ""}
    passwords = [path for path in file.secrets if re.fullmatch(rf"{re.escape(file.dataset)}\w*passw\w*", path, re.I)]
    protocol: Any = file.at(theirs["security_protocol"]) if "security_protocol" in given else None
    if protocol is None and (passwords or {"sasl_plain_username", "sasl_mechanism"} & set(given)):
        protocol = "SASL_SSL"
    if protocol is not None:
        file.set(f"{ours}.protocol", protocol)
    is_sasl = isinstance(protocol, str) and protocol.startswith("SASL")
    has_token = "sasl_mechanism" in given and file.at(given["sasl_mechanism"]) == "OAUTHBEARER"
    secret, variable = ("token", TOKEN_ENV) if has_token else ("password", PASSWORD_ENV)
    reference = f'the {secret} is referred to as {{"env": "{variable}"}}'
    told_at = next((name for name in ("sasl_plain_username", "sasl_mechanism") if name in given), "")
    how = f"kept; {protocol}, certificates are verified, {reference}" if is_sasl else ""
    for name, path in given.items():
        file.put(f"{ours}.{_SECURITY[name]}", file.at(path), path, how if name == told_at else "")
    if is_sasl:
        file.set(f"{ours}.{secret}", {"env": variable})
        for path in passwords:
            file.note(path, "translated", f"{ours}.{secret}", f"never carried over: {reference}")


def _read_trainer(file: _File) -> None:
    _read_name(file)
    file.take("trainer.max_steps", "max_steps")
    file.take("trainer.seed", "rng_seed")
    _read_batch_size(file)
    _read_saves(file)
    level = file.at("precision_level")
    if _is_count(level) and level == 2:
        why = "bfloat16 activations over float32 weights, as there; tables stay float32 here"
        file.put("model.compute_dtype", "bfloat16", "precision_level", why)


def _read_name(file: _File) -> None:
    name = file.at("name")
    if not isinstance(name, str):
        file.take("trainer.name", "name")
        return
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:64]
    if not clean.strip("-"):
        file.ignore("name", "no name for a run folder: the default stays")
    else:
        why = "" if clean == name else "what a run folder cannot be called became -, cut at 64 letters"
        file.put("trainer.name", clean, "name", why)


def _read_batch_size(file: _File) -> None:
    """Rows a device times devices; the file's rows a device may be a fraction."""
    target, rows_path = "trainer.global_batch_size", "bs_per_device"
    if not file.given(rows_path):
        return
    rows = file.at(rows_path)
    axes = {path: file.at(path) for path in ("parallel_config.dp", "parallel_config.ep") if file.given(path)}
    wrong = [path for path, size in axes.items() if not _is_count(size)]
    for path in wrong:
        file.refuse(path, target, "expected an integer from 1 on")
    if not isinstance(rows, int | float) or isinstance(rows, bool) or not 0 < rows < 2**31:
        file.refuse(rows_path, target, "expected a number above 0 and below 2147483648")
    elif not wrong:
        devices = math.prod(axes.values())
        batch_size = int(rows * devices)
        file.put(target, batch_size, rows_path, f"{shown(rows)} rows on each of {devices} devices: {batch_size}")
        for path in axes:
            file.note(path, "translated", target, "a factor of the batch; mesh.num_devices takes the devices it finds")


def _read_saves(file: _File) -> None:
    every, last, nth = (f"checkpoint_config.checkpoint_{name}" for name in ("every_n", "keep_last_n", "keep_every_nth"))
    for path in (every, last, nth):
        if _is_zero(file.at(path)):
            file.ignore(path, "0 turns it off there: the default stays")
    if not _is_zero(file.at(every)):
        file.take("checkpoint.save_every_steps", every, why="steps, as there; each save here is one on disk")
    if not _is_zero(file.at(last)):
        file.take("checkpoint.keep_last", last)
    if _is_count(file.at(nth)) and _is_count(file.at(every)):
        steps = file.at(nth) * file.at(every)
        file.put("checkpoint.keep_every", steps, nth, f"counts saves there; {steps} steps")
    elif _is_count(file.at(nth)):
        file.ignore(nth, "counts saves, and checkpoint_every_n gives no steps between them")
    elif not _is_zero(file.at(nth)):
        file.take("checkpoint.keep_every", nth)


def _read_optimizers(file: _File) -> None:
    optimizer = file.at("optim_config.optim")
    is_adam = optimizer in ("adam", "adamw", None, _ABSENT)
    why = "" if is_adam else f"of {shown(optimizer)}, which is not here: AdamW takes it, tune it anew"
    if file.given("optim_config.optim"):
        how = "AdamW, its decay decoupled and scaled by the learning rate, as there" if is_adam else why
        file.note("optim_config.optim", "translated", "optimizer.dense", how)
    _read_learning_rate(file, why)
    for ours, theirs in _DENSE.items():
        file.take(f"optimizer.dense.{ours}", f"optim_config.{theirs}", why=why)
    for ours, theirs in _SPARSE.items():
        places = [f"emb_optim_config.rowwise_adagrad.{theirs}", f"emb_optim_config.{theirs}"]
        file.take(f"optimizer.sparse.{ours}", *places)


def _read_learning_rate(file: _File, why: str) -> None:
    """The schedule's rate, which the optimizer's own must leave alone there; without a schedule the optimizer's."""
    target, scheduled, own = "optimizer.dense.learning_rate", f"{_SCHEDULE}.learning_rate", "optim_config.learning_rate"
    if isinstance(file.at(_SCHEDULE), Mapping) and _class_name(file.at(f"{_SCHEDULE}.__class")) not in (CONSTANT, ""):
        unknown = "a schedule unknown here: set optimizer.dense.learning_rate, warmup_steps and decay_steps yourself"
        for path in (*file.below(_SCHEDULE), own):
            file.ignore(path, unknown)
    elif path := file.first(scheduled, own):
        constant = "constant there, so warmup_steps is 0"
        file.put(target, file.at(path), path, f"{constant}; {why}" if why else constant)
        file.set("optimizer.dense.warmup_steps", 0)
        if path == scheduled:
            file.ignore(own, "1 there, for the schedule gives the rate")


def _read_model(file: _File) -> None:
    if _class_name(file.at("model_config.__class")) not in (RANKER, ""):
        file.ignore("model_config.__class", "another model than the ranker, which is not here: only its sizes are read")
    for ours, places in _MODEL.items():
        file.take(f"model.{ours}", *(f"model_config.{place}" for place in places))
    head = f"{_TRANSFORMER}.attn_config.key_size"
    if file.given(head):
        parts = [file.at(head), *(file.at(f"model_config.{_MODEL[name][0]}") for name in ("num_heads", "width"))]
        same = all(map(_is_count, parts)) and parts[0] * parts[1] == parts[2]
        how = "as many as there" if same else "another number than there"
        file.ignore(head, f"a head has width / num_heads numbers here, {how}")


# Small parts


def _leaves(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Path and value of everything that holds nothing below it, in order; a list of plain values is one value."""
    pending: list[tuple[str, Any]] = [("", mapping)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, Mapping) and (value or not path):
            pending += [(join_path(path, str(key)), item) for key, item in reversed(list(value.items()))]
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
            pending += [(join_path(path, index), item) for index, item in reversed(list(enumerate(value)))]
        else:
            yield path, value


def _may_be_secret(path: str, value: Any) -> bool:
    if value is None or value == "" or path.endswith("__class"):
        return False
    if "passw" in path.lower():
        return True
    texts = [item for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, str)]
    name = split_path(path)[-1].lower()
    return any("-----BEGIN" in text for text in texts) or (bool(texts) and any(word in name for word in _SECRET_NAMES))


def _why_ignored(path: str, value: Any) -> str:
    steps = split_path(path)
    if set(steps) & set(RUNTIME):
        return "runtime state"
    if steps[-1] == "__class":
        return _WHY_CLASS.get(steps[:-1], "a class's name, read as text")
    if value is None:
        return "null"
    return _WHY_IGNORED.get(steps[-1], "no counterpart here")


def _class_name(value: Any) -> str:
    return value.rpartition(".")[2] if isinstance(value, str) else ""


def _why_not_read(instead: str, same: bool) -> str:
    return f"a copy: {instead} is read" if same else f"differs from {instead}, which is read"


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_zero(value: Any) -> bool:
    return type(value) is int and value == 0


def _fix(target: str) -> str:
    return f"correct it in a copy of the file; it becomes {target}" if target else "correct it in a copy of the file"


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted paths -> sections."""
    root: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        node = root
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return root
