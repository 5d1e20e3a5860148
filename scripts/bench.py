"""`make bench`: speed as ratios, measured in one process with both sides alive and alternated.

Prints a table, writes runs/bench/latest.json, exits 1 if a bar is missed. Absolute times differ between machines and hours;
ratios within one run hold, those of CPU seconds best, since other programs on the machine stretch the wall clock alone.
"""

import io
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xai_configlib import apply_overrides, load_text
from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.manager import Checkpoints
from xrex.data.prefetch import Stream
from xrex.embeddings.native import kernel as native
from xrex.embeddings.table import arenas
from xrex.optim.config import DenseOptimizerConfig
from xrex.optim.dense import dense_optimizer
from xrex.optim.rowwise import RowwiseAdagrad
from xrex.report.progress import table
from xrex.report.sinks import JsonLines
from xrex.schema.batch import Batch, Delivery
from xrex.schema.inputs import ModelInputs
from xrex.schema.positions import PartitionPosition, TopicPositions
from xrex.schema.specs import FeatureSpec, TableSpec
from xrex.sharding.config import MeshConfig
from xrex.sharding.mesh import dense_sharding, make_mesh, over_rows
from xrex.train.config import TrainerConfig
from xrex.train.loop import Loop
from xrex.train.progress import Progress
from xrex.train.reporting import Reporter
from xrex.train.setup import build_program, model_inputs
from xrex.train.state import initial_state, state_shardings
from xrex.train.step import build_step
from xrex.utils.metadata import MetadataRecorder, package_versions, utc_now

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
LATEST = ROOT / "runs" / "bench" / "latest.json"
BASELINE = ROOT / "docs" / "bench_baseline.json"
SMALL, MEDIUM, LARGE = 100_000, 1_000_000, 10_000_000
WARM_UP = 3
LIMIT = 1.0
"""A larger table, or the loop around a step, can cost nothing at best; a save must copy."""


@dataclass
class Row:
    """One line of latest.json."""

    ratio: float | None
    spread: float | None
    """Interquartile range of the rounds' ratios over their median."""
    limit: float | None
    """What no implementation can beat."""
    bar: float
    ok: bool | None
    reason: str
    """What the ratio was made of, or why there is none."""


class Steps:
    """A training step and its state, to be called again and again. It goes round over several batches: the rows of a single
    one would stay in the processor's caches."""

    def __init__(self, step: Callable, mesh, shapes: Any, batches: list[Batch]):
        self.step = step
        self.mesh, self.batches = mesh, batches
        # What the state holds does not change how long a step takes; drawing 640 million normal numbers does.
        self.state = jax.tree.map(lambda s: jnp.full(s.shape, 0.01, s.dtype, device=s.sharding), shapes)
        slots = shapes.slots.items()
        self.scratch = {a: jnp.zeros(s.shape, jnp.int32, device=over_rows(mesh)) for a, s in slots}
        inputs = [(batch, np.zeros((1, 2), np.int32)) for batch in batches]
        self.inputs = cycle(jax.device_put(inputs, over_rows(mesh)))

    def __call__(self) -> None:
        """One step, waited for."""
        self.state, self.scratch, report = self.step(self.state, self.scratch, *next(self.inputs))
        jax.block_until_ready(report)


def embedding_steps(num_rows: int, *, by_kernel: bool, rows: int = 64, ids: int = 320, dim: int = 64) -> Steps:
    """The mean of 320 embeddings times one vector: 20,480 ids a step and next to nothing but the table."""
    spec = TableSpec(name="items", num_embeddings=num_rows, embedding_dim=dim, salts=())
    feature = FeatureSpec(name="item", group="history", column="item", table="items")
    inputs = ModelInputs((feature,), (spec,), 1, ids, 1, history_actions=False)
    mesh, optimizer = make_mesh(MeshConfig(num_devices=1), rows), dense_optimizer(DenseOptimizerConfig())

    def merge(params):
        return lambda embedded, batch: (jnp.mean(embedded["history"]["item"], axis=1) @ params["weight"])[:, None]

    rule = RowwiseAdagrad(learning_rate=0.05, epsilon=1e-8)
    dense = dense_sharding(mesh, MeshConfig())
    step = build_step(merge, arenas(inputs), optimizer, rule, (1.0,), mesh, dense, by_kernel)
    fresh = partial(initial_state, optimizer=optimizer, arenas=arenas(inputs), mesh=mesh, seed=0, embedding_stddev=0.02)
    shapes = jax.eval_shape(partial(fresh, initial_accumulator=1e-3), {"weight": jnp.ones((dim, 1))})
    placed = jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
        shapes,
        state_shardings(mesh, shapes, MeshConfig()),
    )
    return Steps(step, mesh, placed, random_batches(inputs, rows))


def ranker_steps(num_rows: int) -> Steps:
    """The quickstart's ranker and batch size, its table of items as large as asked."""
    config = quickstart(num_rows)
    program, inputs = build_program(config), model_inputs(config.dataset)
    batches = random_batches(inputs, config.trainer.global_batch_size)
    return Steps(program.step, program.mesh, program.state_target, batches)


def wide_ranker_steps(max_history: int, *overrides: str, shortest: int | None = None, by_rows: int = MEDIUM) -> Steps:
    """A ranker of 4 layers, 128 wide, over 1 + `max_history` + 16 tokens in batches of 64; full histories, or of any length from
    `shortest` up. Its table of items has `by_rows` rows."""
    items = {"table": "items", "kind": "id"}
    dataset = {
        "topic_name": "bench",
        "num_kafka_partitions": 1,
        "actions": [f"action_{n}" for n in range(16)],
        "max_history": max_history,
        "max_candidates": 16,
        "tables": [
            {"name": "users", "num_embeddings": SMALL, "embedding_dim": 128},
            {"name": "items", "num_embeddings": by_rows, "embedding_dim": 128},
        ],
        "features": [
            {"name": "user", "group": "user", "column": "user", "table": "users"},
            {"name": "past_item", "group": "history", "column": "past_item", **items},
            {"name": "item", "group": "candidate", "column": "item", **items},
        ],
    }
    sizes = {"width": 128, "num_layers": 4, "num_heads": 4, "num_kv_heads": 4, "feedforward_multiplier": 4}
    loop = {"global_batch_size": 64}
    given = {"dataset": dataset, "model": sizes, "trainer": loop, "mesh": {"num_devices": 1}}
    config = apply_overrides(TrainerConfig.from_json(given), overrides)
    program, inputs = build_program(config), model_inputs(config.dataset)
    batches = random_batches(inputs, 64)
    if shortest is not None:
        rng = np.random.default_rng(2)
        batches = [cut_histories(batch, rng.integers(shortest, max_history + 1, 64)) for batch in batches]
    return Steps(program.step, program.mesh, program.state_target, batches)


def cut_histories(batch: Batch, lengths: np.ndarray) -> Batch:
    """The batch with only the first `lengths` events of each row."""
    missing = np.arange(batch.history_actions.shape[1]) >= lengths[:, None]
    events = {name: np.where(missing[..., None], -1, ids) for name, ids in batch.history.items()}
    actions = batch.history_actions & ~missing[..., None]
    return batch._replace(history=events, history_actions=actions, history_length=lengths.astype(np.int32))


def quickstart(num_items: int) -> TrainerConfig:
    """The quickstart's config on one device, with that many rows for items."""
    mapping = load_text(QUICKSTART.read_bytes(), str(QUICKSTART))
    next(t for t in mapping["dataset"]["tables"] if t["name"] == "items")["num_embeddings"] = num_items
    return TrainerConfig.from_json({**mapping, "mesh": {"num_devices": 1}})


def random_batches(inputs: ModelInputs, rows: int) -> list[Batch]:
    """8 full batches whose ids come, in every table, out of a fixed number of rows: a larger table has no more of them."""
    return [random_batch(np.random.default_rng(seed), inputs, rows) for seed in range(8)]


def random_batch(rng: np.random.Generator, inputs: ModelInputs, rows: int) -> Batch:
    """One of them."""
    lengths = {"user": (), "history": (inputs.max_history,), "candidate": (inputs.max_candidates,)}
    features: dict[str, dict] = {group: {} for group in lengths}
    for f in inputs.features:
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
    places = scattered(num_rows)
    weights = 1.0 / np.arange(1, len(places) + 1) ** 1.05
    return places[np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(shape))]


@lru_cache
def scattered(num_rows: int) -> np.ndarray:
    """int32[at most SMALL]: the same rows for every batch."""
    return np.random.default_rng(1).permutation(num_rows)[:SMALL].astype(np.int32)


def alternate(one: Callable[[], None], other: Callable[[], None], rounds: int, inner: int) -> np.ndarray:
    """float64[rounds, 2 (one, other), 2 (wall, CPU)]: seconds a call, each round's order the other way round."""
    seconds = np.zeros((rounds, 2, 2))
    for call in (one, other):
        for _ in range(WARM_UP):
            call()
    for i in range(rounds):
        for which in (0, 1) if i % 2 else (1, 0):
            began = now()
            for _ in range(inner):
                (one, other)[which]()
            seconds[i, which] = now() - began
    return seconds / inner


def loop_seconds(steps: Steps, bare: Steps, rounds: int, inner: int) -> np.ndarray:
    """As `alternate`: a step of the loop (place, step, fetch, metrics, positions, lines) against a bare step of the same program.

    Batches are there already, so that nothing of reading them is counted. The loop runs for `inner` steps, then waits while the
    bare step runs as often, and so on.
    """
    config, actions = quickstart(SMALL), [str(number) for number in range(steps.batches[0].labels.shape[2])]
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        loop = Loop(
            config=config,
            mesh=steps.mesh,
            step=steps.step,
            state=steps.state,
            scratch=steps.scratch,
            stream=Deliveries(steps.batches),
            positions=TopicPositions("bench", None, {0: PartitionPosition(0, 0, None)}),
            progress=Progress.start(tuple(actions), (), config.evaluation.window_examples),
            examples=0,
            checkpoints=NoSaves(),
            recorder=NoFiles(),
            reporter=Reporter(Path(folder), log_every_steps=inner, total_steps=None, examples_before=0),
            journal=None,
            dead_letters=JsonLines(Path(folder) / "dead-letters-0.jsonl"),
        )
        watch = loop.step = Stopwatch(loop.step, bare, rounds, inner)
        loop.run(lambda: watch.done)
    return np.array(watch.seconds) / inner


class Deliveries(Stream):
    """Stands in for the stream: the same batches again and again, without a wait."""

    def __init__(self, batches: list[Batch]):
        self.batches, self.delivered, self.wait_seconds = batches, 0, 0.0

    def next(self, interrupted: Callable[[], bool] = lambda: False) -> Delivery:
        """The next one."""
        self.delivered += 1
        batch = self.batches[self.delivered % len(self.batches)]
        positions = {0: PartitionPosition(self.delivered, 0, None)}
        return Delivery(batch, len(batch.weight), positions, trained=(), more=True, newest_event_ms=1)

    def lag(self) -> dict[int, int]:
        """None."""
        return {0: 0}

    @property
    def outages(self) -> int:
        """None."""
        return 0

    def new_partitions(self) -> None:
        """None."""


class NoSaves(Checkpoints):
    """Stands in for the checkpoints: a save costs nothing."""

    def __init__(self):
        pass

    def save(self, *arguments, **named) -> None:
        """Nothing."""

    def check(self) -> None:
        """Nothing."""

    def wait(self) -> None:
        """Nothing."""


class NoFiles(MetadataRecorder):
    """Stands in for the recorder."""

    def files(self) -> dict[str, bytes]:
        """None."""
        return {}


def start_seconds(rounds: int) -> np.ndarray:
    """float64[rounds, 2, 2]: a start of the quickstart up to its first step and save where all is compiled already, and one where
    nothing is."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        train = (*train_on_stream(f"{folder}/log", examples=100), "trainer.max_steps=1")
        for number in range(rounds):
            cache = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache-{number}"} | KEEP_ALL
            cold, warm = (
                seconds_of_command((*train, "--run-dir", f"{folder}/{name}-{number}"), cache)
                for name in ("cold", "warm")
            )
            seconds.append((warm, cold))
    return np.array(seconds)


KEEP_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def train_on_stream(log: str, examples: int) -> tuple[str, ...]:
    """Write so many rows of the synthetic world there; the command that trains the quickstart on them."""
    produce = (
        "data",
        "produce",
        "--to",
        log,
        "--topic",
        "engagements",
        "--partitions",
        "4",
        "--examples",
        str(examples),
    )
    subprocess.run([sys.executable, "-m", "xrex.cli", *produce], check=True, capture_output=True)
    return (
        *(sys.executable, "-m", "xrex.train.trainer_recsys", "--config", str(QUICKSTART)),
        f"dataset.log.path={log}",
    )


def help_seconds(rounds: int) -> np.ndarray:
    """float64[rounds, 2, 2]: `xrex --help`, and a Python that imports numpy."""
    ours, numpy = (sys.executable, "-m", "xrex.cli", "--help"), (sys.executable, "-c", "import numpy")
    return np.array([[seconds_of_command(ours, {}), seconds_of_command(numpy, {})] for _ in range(rounds)])


def seconds_of_command(command: tuple[str, ...], environment: dict[str, str]) -> np.ndarray:
    """float64[2 (wall, CPU)]: of a process and its children."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return np.array([wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime])


def input_wait() -> Row:
    """Share of the quickstart's time that its loop waits for input, with a backlog on disk."""
    with tempfile.TemporaryDirectory() as folder:
        train = train_on_stream(folder, examples=80_000)
        train += ("checkpoint.save_every_steps=100000", "--run-dir", f"{folder}/run")
        subprocess.run(train, check=True, capture_output=True)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    lines = lines[1:]  # the first one has the compilation
    shares, rates = zip(*((r["input_wait_share"], r["examples_per_s"]) for r in map(json.loads, lines)), strict=True)
    low, share, high = statistics.quantiles(shares, n=4)
    reason = f"{share:.2%} of the time, {statistics.median(rates):,.0f} examples/s"
    return Row(round(share, 4), round((high - low) / max(share, 1e-9), 3), 0.0, 0.02, share <= 0.02, reason)


def save_seconds(rounds: int, steps_after: int = 5) -> np.ndarray:
    """float64[rounds, 2, 2]: what a save takes from the loop (its call and the next steps, less as many quiet ones), and a plain
    copy of the same bytes into a buffer that is there."""
    steps = embedding_steps(MEDIUM, by_kernel=native.available())
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), CheckpointConfig(keep_last=1), merge_progress=lambda parts: {})
        checkpoints.prepare()
        files = {"config.json": b"{}\n", "run.json": b"{}\n"}
        warm = [np.array(leaf) for leaf in jax.tree.leaves(steps.state)]
        for number in range(1, rounds + WARM_UP + 1):
            quiet = seconds_of(steps, 4 * steps_after) / 4
            began = now()
            checkpoints.save(number, steps.state, positions=TopicPositions("t", None, {}), progress={}, files=files)
            save = now() - began + seconds_of(steps, steps_after)
            checkpoints.wait()
            began = now()
            for buffer, leaf in zip(warm, jax.tree.leaves(steps.state), strict=True):
                np.copyto(buffer, np.asarray(leaf))
            seconds.append((np.maximum(save - quiet, 1e-9), now() - began))
        checkpoints.close()
    return np.array(seconds[WARM_UP:])


def seconds_of(call: Callable[[], None], count: int) -> np.ndarray:
    """float64[2 (wall, CPU)]: seconds of so many calls."""
    began = now()
    for _ in range(count):
        call()
    return now() - began


class Stopwatch:
    """Stands in for the loop's step: after each `inner` calls it notes their seconds, and those of as many bare steps."""

    def __init__(self, step: Callable, bare: Callable[[], None], rounds: int, inner: int):
        self.step, self.bare, self.rounds, self.inner = step, bare, rounds, inner
        self.calls, self.began, self.seconds = -WARM_UP, np.zeros(2), []

    @property
    def done(self) -> bool:
        """Whether all rounds are noted."""
        return len(self.seconds) == self.rounds

    def __call__(self, *arguments):
        """The step itself."""
        if self.calls > 0 and self.calls % self.inner == 0 and not self.done:
            of_loop, began = now() - self.began, now()
            for _ in range(self.inner):
                self.bare()
            self.seconds.append((of_loop, now() - began))
        if self.calls % self.inner == 0:
            self.began = now()
        self.calls += 1
        return self.step(*arguments)


def now() -> np.ndarray:
    """Seconds by the wall clock and of the whole process's CPU time."""
    return np.array([time.perf_counter(), time.process_time()])


def measured(seconds: np.ndarray, *, bar: float, by_wall: bool = False, limit: float | None = LIMIT) -> Row:
    """A row of one / other. It must hold in CPU seconds and by the wall clock: there by the median or the fastest rounds.

    by_wall  by the wall clock alone: what runs in the background costs CPU seconds that nobody waits for
    """
    ratios = seconds[:, 0] / seconds[:, 1]
    cpu, wall = np.median(ratios[:, 1]), min(np.median(ratios[:, 0]), seconds[:, 0, 0].min() / seconds[:, 1, 0].min())
    low, middle, high = statistics.quantiles(ratios[:, 0 if by_wall else 1], n=4)
    ms, ratio = np.median(seconds, axis=0) * 1e3, wall if by_wall else max(cpu, wall)
    return Row(
        ratio=round(float(ratio), 3),
        spread=round(float((high - low) / middle), 3),
        limit=limit,
        bar=bar,
        ok=bool(ratio <= bar),
        reason=f"CPU {cpu:.2f} ({ms[0, 1]:.2f} / {ms[1, 1]:.2f} ms), wall {wall:.2f} ({ms[0, 0]:.2f} / {ms[1, 0]:.2f} ms)",
    )


ROWS: dict[str, Callable[[], Row]] = {
    "embedding_step_native_10m_over_100k_rows": lambda: by_native(1.5, table_seconds),
    "embedding_step_xla_10m_over_100k_rows": lambda: measured(table_seconds(by_kernel=False), bar=1.8),
    "embedding_step_native_over_xla_1m_rows": lambda: by_native(0.67, native_over_xla_seconds),
    "ranker_step_10m_over_100k_rows": lambda: measured(alternated(ranker_steps(LARGE), ranker_steps(SMALL)), bar=1.15),
    "ranker_step_micro_batches_over_whole_257_tokens": lambda: measured(
        alternate(wide_ranker_steps(256, *PACKED), wide_ranker_steps(256), rounds=5, inner=1), bar=1.0, limit=None
    ),
    "ranker_step_packed_over_padded_1_to_256_events": lambda: measured(packed_seconds(), bar=0.588, limit=None),
    "loop_over_bare_step_wide_ranker": lambda: measured(
        loop_seconds(wide_ranker_steps(64), wide_ranker_steps(64), rounds=7, inner=4), bar=1.05
    ),
    "loop_over_bare_step_embedding": lambda: by_native(
        1.3, lambda: loop_seconds(medium_embedding(), medium_embedding(), rounds=15, inner=50)
    ),
    "input_wait_share_quickstart": input_wait,
    "warm_start_over_cold_start": lambda: measured(start_seconds(rounds=3), bar=0.6, limit=None),
    "xrex_help_over_import_numpy": lambda: measured(help_seconds(rounds=7), bar=2.0, limit=None),
    "save_and_5_steps_over_plain_copy": lambda: measured(save_seconds(rounds=15), bar=3.0, by_wall=True),
}


def table_seconds(*, by_kernel: bool = True) -> np.ndarray:
    """An embedding step with LARGE rows in its table, and one with SMALL."""
    return alternated(embedding_steps(LARGE, by_kernel=by_kernel), embedding_steps(SMALL, by_kernel=by_kernel))


PACKED = ("trainer.micro_batches=16", "trainer.history_widths=8")
"""4 rows at a time, histories padded to a multiple of 32."""


def packed_seconds() -> np.ndarray:
    """A step of the wide ranker in micro-batches by history length, and on the padded batch; lengths are uniform."""
    packed, padded = wide_ranker_steps(256, *PACKED, shortest=1), wide_ranker_steps(256, shortest=1)
    return alternate(packed, padded, rounds=7, inner=1)


def medium_embedding() -> Steps:
    """An embedding step by the native kernel."""
    return embedding_steps(MEDIUM, by_kernel=True)


def native_over_xla_seconds() -> np.ndarray:
    """An embedding step by the native kernel, and by XLA."""
    return alternated(embedding_steps(MEDIUM, by_kernel=True), embedding_steps(MEDIUM, by_kernel=False))


def alternated(one: Steps, other: Steps) -> np.ndarray:
    """`alternate`, as often as the figures of docs/performance.md."""
    return alternate(one, other, rounds=21, inner=5)


def by_native(bar: float, seconds: Callable[[], np.ndarray]) -> Row:
    """A row that needs the native kernel, or why there is none."""
    if why := native.why_unavailable():
        return left_out(bar, why, limit=LIMIT)
    return measured(seconds(), bar=bar)


def left_out(bar: float, why: str, limit: float | None = None) -> Row:
    """A row that this machine cannot run."""
    return Row(ratio=None, spread=None, limit=limit, bar=bar, ok=None, reason=why)


def main() -> int:
    """Measure every row; 1 if one misses its bar. With `--write-baseline` what was found is what later runs are shown beside."""
    rows = {name: row() for name, row in ROWS.items()}
    before = json.loads(BASELINE.read_text())["rows"] if BASELINE.exists() else {}
    text = keep(rows, LATEST)
    if "--write-baseline" in sys.argv[1:]:
        BASELINE.write_text(text)
    print(shown(rows, before))
    return 1 if any(row.ok is False for row in rows.values()) else 0


def keep(rows: dict[str, Row], path: Path) -> str:
    """Write the rows and the machine they were measured on, and return that text."""
    found = {"machine": machine(), "rows": {name: asdict(row) for name, row in rows.items()}}
    text = json.dumps(found, indent=2) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text


def shown(rows: dict[str, Row], before: dict[str, dict]) -> str:
    """The table for people; `before` are the rows of docs/bench_baseline.json."""
    verdicts = {True: "ok", False: "MISSED", None: "left out"}
    lines = [
        [name, r.ratio, r.spread, before.get(name, {}).get("ratio"), r.bar, verdicts[r.ok], r.reason]
        for name, r in rows.items()
    ]
    return table(["", "ratio", "spread", "baseline", "bar", "", ""], lines)


def machine() -> dict[str, Any]:
    """Where and when it was measured."""
    cpu = next((line.split(":")[1].strip() for line in cpu_info() if line.startswith("model name")), platform.machine())
    return {
        "date": utc_now(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "backend": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
        "packages": package_versions(),
    }


def cpu_info() -> list[str]:
    """Lines of /proc/cpuinfo; none where there is no such file."""
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
