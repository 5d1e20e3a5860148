"""A ranker with every kind of feature, small enough to be checked by hand, and random batches for it."""

import jax
import numpy as np

from xai_configlib import apply_overrides
from xrex.schema.batch import Batch
from xrex.sharding.global_batch import place
from xrex.sharding.mesh import make_mesh
from xrex.train.config import TrainerConfig
from xrex.train.setup import Program, build_program, model_inputs

DATASET = {
    "topic_name": "engagements",
    "num_kafka_partitions": 1,
    "actions": ["click", "like"],
    "max_history": 6,
    "max_candidates": 3,
    "tables": [
        {"name": "users", "num_embeddings": 900, "embedding_dim": 16},  # stored as 1,024 rows
        {"name": "items", "num_embeddings": 3000, "embedding_dim": 16},
        {"name": "categories", "num_embeddings": 9, "embedding_dim": 8, "salts": []},
    ],
    "features": [
        {"name": "user", "group": "user", "column": "user", "table": "users"},
        {
            "name": "interests",
            "group": "user",
            "column": "interests",
            "kind": "ids",
            "max_values": 3,
            "table": "categories",
        },
        {"name": "item", "group": "candidate", "column": "item", "table": "items"},
        {"name": "category", "group": "candidate", "column": "category", "table": "categories"},
        {"name": "price", "group": "candidate", "column": "price", "kind": "float"},
        {"name": "past_item", "group": "history", "column": "history_item", "table": "items"},
        {"name": "past_surface", "group": "history", "column": "history_surface", "kind": "one_hot", "max_values": 4},
    ],
}
MODEL = {"width": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "embedding_stddev": 0.3}
OPTIMIZER = {"dense": {"warmup_steps": 4}}
LENGTHS = {"user": (), "history": (6,), "candidate": (3,)}


def config(*overrides: str) -> TrainerConfig:
    """The config of the small ranker: batches of 8 rows."""
    loop = {"global_batch_size": 8}
    given = {"dataset": DATASET, "model": MODEL, "optimizer": OPTIMIZER, "trainer": loop, "mesh": {"num_devices": 1}}
    return apply_overrides(TrainerConfig.from_json(given), overrides)


def random_batch(config: TrainerConfig, seed: int = 0, rows: int = 8) -> Batch:
    """Rows with histories of 0 to 6 events, 1 to 3 candidates, ids that repeat, labels that are partly unknown."""
    rng, inputs = np.random.default_rng(seed), model_inputs(config.dataset)
    lengths = {
        "history": rng.integers(0, 7, rows).astype(np.int32),
        "candidate": rng.integers(1, 4, rows).astype(np.int32),
    }
    lengths["history"][0], lengths["candidate"][0] = 0, 3
    present = {g: np.arange(LENGTHS[g][0]) < lengths[g][:, None] for g in lengths}
    present["user"] = np.ones(rows, bool)
    features: dict = {"user": {}, "history": {}, "candidate": {}}
    for f in inputs.features:
        shape, there = (rows, *LENGTHS[f.group]), present[f.group]
        if f.kind == "float":
            values = np.where(there, rng.normal(size=shape), 0).astype(np.float32)
        elif f.kind == "one_hot":
            values = np.eye(f.max_values, dtype=np.float32)[rng.integers(0, f.max_values, shape)] * there[..., None]
        else:
            table = inputs.table(f)
            ids = rng.integers(0, min(40, table.num_embeddings), (*shape, f.max_values * table.num_hashes))
            values = np.where(there[..., None], ids, -1).astype(np.int32)
        features[f.group][f.name] = values
    actions = (rows, 3, len(config.dataset.actions))
    mask = present["candidate"][..., None] & (rng.random(actions) < 0.8)
    return Batch(
        features["user"],
        features["history"],
        features["candidate"],
        (rng.random((rows, 6, actions[-1])) < 0.4) & present["history"][..., None],
        lengths["history"],
        lengths["candidate"],
        np.where(mask, rng.random(actions) < 0.4, False).astype(np.float32),
        mask,
        np.ones(rows, np.float32),
    )


def padded(batch: Batch, *, rows: int = 0, history: int = 0, candidates: int = 0) -> Batch:
    """The same batch in longer shapes: -1 for ids, 0 and false for the rest."""

    def pad(x, *more):
        missing = -1 if x.dtype == np.int32 and x.ndim > 1 else 0
        widths = [(0, n) for n in (rows, *more)] + [(0, 0)] * (x.ndim - 1 - len(more))
        return np.pad(x, widths, constant_values=missing)

    return Batch(
        {name: pad(x) for name, x in batch.user.items()},
        {name: pad(x, history) for name, x in batch.history.items()},
        {name: pad(x, candidates) for name, x in batch.candidates.items()},
        pad(batch.history_actions, history),
        pad(batch.history_length),
        pad(batch.candidate_length),
        pad(batch.labels, candidates),
        pad(batch.label_mask, candidates),
        pad(batch.weight),
    )


class Trainer:
    """A program, its state, and steps on batches that are numpy."""

    def __init__(self, config: TrainerConfig):
        self.config = config
        mesh = make_mesh(config.mesh, config.trainer.global_batch_size)
        self.program: Program = build_program(config, mesh)
        self.state, self.scratch = self.program.fresh_state(), self.program.scratch()

    def step(self, batch: Batch, more: int = 1, stop: int = 0):
        """The report of one step."""
        signals = np.array([[more, stop]] + [[0, 0]] * (self.program.mesh.size - 1), np.int32)
        inputs = place(self.program.mesh, (batch, signals))
        self.state, self.scratch, report = self.program.step(self.state, self.scratch, *inputs)
        return jax.block_until_ready(report)
