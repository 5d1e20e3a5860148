"""`make bench`: speed as ratios, measured in one process with both sides alive and alternated.

Prints a table, writes runs/bench/latest.json, exits 1 if a bar is missed. Absolute times differ between machines and hours;
ratios within one run hold, those of CPU seconds best, since other programs on the machine stretch the wall clock alone.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xai_configlib import load_text
from xrex.embeddings.table import arenas
from xrex.optim.config import DenseOptimizerConfig
from xrex.optim.dense import dense_optimizer
from xrex.optim.rowwise import rowwise_adagrad
from xrex.report.progress import table
from xrex.schema.batch import Batch
from xrex.schema.inputs import ModelInputs
from xrex.schema.specs import FeatureSpec, TableSpec
from xrex.sharding.config import MeshConfig
from xrex.sharding.global_batch import place
from xrex.sharding.mesh import make_mesh, over_rows
from xrex.train.config import TrainerConfig
from xrex.train.setup import build_program, model_inputs
from xrex.train.state import initial_state, state_shardings
from xrex.train.step import build_step

ROOT = Path(__file__).parents[1]
LATEST = ROOT / "runs" / "bench" / "latest.json"
SMALL, LARGE = 100_000, 10_000_000
WARM_UP = 3


@dataclass
class Row:
    """One line of latest.json."""

    ratio: float | None
    spread: float | None
    """Interquartile range of the rounds' ratios over their median."""
    limit: float | None
    """What the hardware allows; None: not measured."""
    bar: float
    ok: bool | None
    reason: str
    """What the ratio was made of, or why there is none."""


class Steps:
    """A training step and its state, to be called again and again on one batch."""

    def __init__(self, step: Callable, mesh, shapes: Any, batch: Batch):
        self.step = step
        # What the state holds does not change how long a step takes; drawing 640 million normal numbers does.
        self.state = jax.tree.map(lambda s: jnp.full(s.shape, 0.01, s.dtype, device=s.sharding), shapes)
        slots = shapes.slots.items()
        self.scratch = {a: jnp.zeros(s.shape, jnp.int32, device=over_rows(mesh)) for a, s in slots}
        self.inputs = place(mesh, (batch, np.zeros((len(mesh.local_devices), 2), np.int32)))

    def __call__(self) -> None:
        """One step, waited for."""
        self.state, self.scratch, report = self.step(self.state, self.scratch, *self.inputs)
        jax.block_until_ready(report)


def embedding_steps(num_rows: int, *, rows: int = 64, ids: int = 320, dim: int = 64) -> Steps:
    """The mean of 320 embeddings times one vector: 20,480 ids a step and next to nothing but the table."""
    spec = TableSpec(name="items", num_embeddings=num_rows, embedding_dim=dim, salts=())
    feature = FeatureSpec(name="item", group="history", column="item", table="items")
    inputs = ModelInputs((feature,), (spec,), 1, ids, 1, history_actions=False)
    mesh, optimizer = make_mesh(MeshConfig(num_devices=1), rows), dense_optimizer(DenseOptimizerConfig())

    def merge(params):
        return lambda embedded, batch: (jnp.mean(embedded["history"]["item"], axis=1) @ params["weight"])[:, None]

    rule = partial(rowwise_adagrad, learning_rate=0.05, epsilon=1e-8)
    step = build_step(merge, arenas(inputs), optimizer, rule, (1.0,), mesh)
    fresh = partial(initial_state, optimizer=optimizer, arenas=arenas(inputs), seed=0, embedding_stddev=0.02)
    shapes = jax.eval_shape(partial(fresh, initial_accumulator=1e-3), {"weight": jnp.ones((dim, 1))})
    placed = jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, state_shardings(mesh, shapes)
    )
    return Steps(step, mesh, placed, random_batch(inputs, rows))


def ranker_steps(num_rows: int) -> Steps:
    """The quickstart's ranker and batch size, its table of items as large as asked."""
    config = quickstart(num_rows)
    program, inputs = build_program(config), model_inputs(config.dataset)
    return Steps(
        program.step, program.mesh, program.state_target, random_batch(inputs, config.trainer.global_batch_size)
    )


def quickstart(num_items: int) -> TrainerConfig:
    """configs/quickstart.yaml on one device, with that many rows for items."""
    mapping = load_text((ROOT / "configs" / "quickstart.yaml").read_bytes(), "quickstart.yaml")
    next(t for t in mapping["dataset"]["tables"] if t["name"] == "items")["num_embeddings"] = num_items
    return TrainerConfig.from_json({**mapping, "mesh": {"num_devices": 1}})


def random_batch(inputs: ModelInputs, rows: int) -> Batch:
    """A full batch. The ids of every table come out of a fixed number of rows, so that a larger table has no more of them."""
    rng = np.random.default_rng(0)
    lengths = {"user": (), "history": (inputs.max_history,), "candidate": (inputs.max_candidates,)}
    features: dict[str, dict] = {group: {} for group in lengths}
    for f in inputs.of_group("user") + inputs.of_group("history") + inputs.of_group("candidate"):
        shape = (rows, *lengths[f.group], inputs.table(f).num_hashes)
        features[f.group][f.name] = zipf_rows(rng, shape, inputs.table(f).num_embeddings)
    labels = (rows, inputs.max_candidates, inputs.num_actions)
    return Batch(
        features["user"],
        features["history"],
        features["candidate"],
        rng.random((rows, inputs.max_history, inputs.num_actions)) < 0.1,
        np.full(rows, inputs.max_history, np.int32),
        np.full(rows, inputs.max_candidates, np.int32),
        (rng.random(labels) < 0.2).astype(np.float32),
        np.ones(labels, bool),
        np.ones(rows, np.float32),
    )


def zipf_rows(rng: np.random.Generator, shape: tuple[int, ...], num_rows: int) -> np.ndarray:
    """int32[shape]: Zipf-distributed (exponent 1.05) over at most SMALL rows that are scattered over the whole table."""
    distinct = min(num_rows, SMALL)
    weights = 1.0 / np.arange(1, distinct + 1) ** 1.05
    rank = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(shape))
    return np.random.default_rng(1).choice(num_rows, distinct, replace=False)[rank].astype(np.int32)


def alternate(one: Callable[[], None], other: Callable[[], None], rounds: int, inner: int) -> np.ndarray:
    """float64[rounds, 2 (one, other), 2 (wall, CPU)]: seconds a call, each round's order the other way round."""
    seconds = np.zeros((rounds, 2, 2))
    for call in (one, other):
        for _ in range(WARM_UP):
            call()
    for i in range(rounds):
        for which in (0, 1) if i % 2 else (1, 0):
            began = time.perf_counter(), time.process_time()
            for _ in range(inner):
                (one, other)[which]()
            seconds[i, which] = time.perf_counter() - began[0], time.process_time() - began[1]
    return seconds / inner


def measured(seconds: np.ndarray, *, bar: float, limit: float | None) -> Row:
    """A row of one / other. It must hold in CPU seconds and by the wall clock: there by the median or the fastest rounds."""
    ratios = seconds[:, 0] / seconds[:, 1]
    cpu, wall = np.median(ratios[:, 1]), min(np.median(ratios[:, 0]), seconds[:, 0, 0].min() / seconds[:, 1, 0].min())
    low, middle, high = statistics.quantiles(ratios[:, 1], n=4)
    ms = np.median(seconds, axis=0) * 1e3
    return Row(
        ratio=round(float(max(cpu, wall)), 3),
        spread=round((high - low) / middle, 3),
        limit=limit,
        bar=bar,
        ok=bool(max(cpu, wall) <= bar),
        reason=f"CPU {cpu:.2f} ({ms[0, 1]:.2f} / {ms[1, 1]:.2f} ms), wall {wall:.2f} ({ms[0, 0]:.2f} / {ms[1, 0]:.2f} ms)",
    )
