"""What `make quality` runs: whole streams through `xrex data produce` and the trainer, our figures beside the peers'.

MovieLens 100K goes through a real Apache Kafka, once, in the order of time (one partition keeps it exactly), in batches of 20; a
row's history is every earlier second of its user. Its metrics are over the last 10,000 ratings. Then a child of the step at 80 %,
with all learning rates and the weight decay 0, reads the rest with histories that end at 80 %.
The synthetic worlds go through Parquet and a directory log, in batches of 100; their metrics are over the last 30,000 events.

All figures come from the runs' summary.json. They are printed and written to OUT/latest.json:
{name: {"value", "spread", "peer", "command"}}; spread is the standard deviation over seeds, null for a single run.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

import pyarrow.parquet as pq

from xai_configlib import load_text
from xrex.data.baseline import with_online_lr
from xrex.data.synthetic import COLUMNS, World, events

ROOT = Path(__file__).resolve().parents[1]
MOVIELENS = ROOT / "configs" / "movielens.yaml"
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
KAFKA_PORT = "29092"
FROZEN_ROW, FROZEN_STEP = 80_000, 4_000
STANDARD = {"taste": 1.0, "intent": 3.5}
INTENT = {"taste": 0.4, "intent": 7.0}
"""Worlds in which what a user just clicked tells more than who the user is."""

# Measured on the same rows in the same order. FM (8 factors), DeepFM (8 factors, 64-32) and "small ranker" (one layer of width 32
# with wide and FM terms) predict 20 rows, then train on them, Adagrad, mean of 3 seeds; worlds: the small ranker, one run each,
# in batches of 100. Gap closed: 0 is online logistic regression, 1 the optimum.
PEERS = {
    "movielens_auc": (0.7550, "online FM; DeepFM 0.7543, small ranker 0.7748"),
    "movielens_log_loss": (0.5794, "online FM; DeepFM 0.5800, small ranker 0.5595"),
    "movielens_frozen_auc": (0.7010, "DeepFM frozen at 80 %; small ranker 0.6970"),
    "movielens_gain_over_frozen": (0.0533, "DeepFM; small ranker 0.0778"),
    "world_0_gap_closed": (0.234, "small ranker"),
    "world_1_gap_closed": (0.249, "small ranker"),
    "world_2_gap_closed": (0.185, "small ranker"),
    "world_0_intent_gap_closed": (0.685, "small ranker"),
    "world_1_intent_gap_closed": (0.719, "small ranker"),
    "world_2_intent_gap_closed": (0.670, "small ranker"),
    "world_0_intent_history_gain": (0.0481, "small ranker"),
}


@dataclass(frozen=True)
class Figure:
    """One number, as it stands in latest.json."""

    value: float
    spread: float | None
    peer: float | None
    command: str


def main() -> None:
    """Run what the command line asks for, print the table, write latest.json."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    # Two at a time: a step is too small to keep several cores busy.
    with tempfile.TemporaryDirectory(dir=options.out) as work, ThreadPoolExecutor(2) as pool:
        figures: dict[str, Figure] = {}
        if options.only != "synthetic":
            figures |= movielens(Path(work), options, pool)
        if options.only != "movielens":
            for found in pool.map(lambda job: synthetic(Path(work), *job), _worlds(options)):
                figures |= found
    written = json.dumps({name: asdict(figure) for name, figure in figures.items()}, indent=2)
    (options.out / "latest.json").write_text(written + "\n")
    print("\n".join(table(figures)))


def movielens(work: Path, options: argparse.Namespace, pool: ThreadPoolExecutor) -> dict[str, Figure]:
    """The figures of MovieLens 100K; none, and a line, where it is not installed."""
    data = options.movielens or installed_movielens()
    if data is None:
        print("left out: MovieLens 100K; pip install --no-deps recbole==1.2.1, or --movielens FOLDER", file=sys.stderr)
        return {}
    with kafka(options.kafka) as address:
        whole, rest = (f"ratings-{uuid.uuid4().hex[:8]}" for _ in range(2))
        source = ("--to", address, "--partitions", 1, "--from", "movielens", data)
        xrex("data", "produce", *source, "--topic", whole)
        xrex("data", "produce", *source, "--topic", rest, "--skip", FROZEN_ROW, "--history-until", FROZEN_ROW)
        runs = list(pool.map(lambda seed: _movielens_runs(work, address, whole, rest, seed), options.seeds))
    likes = [(online["metrics"]["like"], frozen["metrics"]["like"]) for online, frozen in runs]
    by_name = {
        "movielens_auc": [online["auc"] for online, _ in likes],
        "movielens_log_loss": [online["log_loss"] for online, _ in likes],
        "movielens_frozen_auc": [frozen["auc"] for _, frozen in likes],
        "movielens_gain_over_frozen": [online["auc"] - frozen["auc"] for online, frozen in likes],
    }
    return {name: figure(name, values, "--only movielens") for name, values in by_name.items()}


def _movielens_runs(work: Path, address: str, whole: str, rest: str, seed: int) -> tuple[dict, dict]:
    """summary.json of the run over `whole`, and of its child over `rest` that learns nothing."""
    online, frozen = work / f"movielens-{seed}", work / f"movielens-{seed}-frozen"
    log = ("dataset.log=KafkaLog", f"dataset.log.bootstrap_servers={address}")
    topic = (*log, f"dataset.topic_name={whole}", "dataset.num_kafka_partitions=1")
    first = train(online, "--config", MOVIELENS, *topic, f"trainer.seed={seed}")
    nothing = (f"optimizer.{rate}=0" for rate in ("dense.learning_rate", "dense.weight_decay", "sparse.learning_rate"))
    begin = ("--checkpoint", online / "checkpoints" / str(FROZEN_STEP), "--start-at", "earliest")
    return first, train(frozen, *begin, f"dataset.topic_name={rest}", *nothing)


def synthetic(work: Path, seed: int, knobs: dict[str, float]) -> dict[str, Figure]:
    """The figures of one world; with INTENT also what the history is worth."""
    name = f"world_{seed}" + ("_intent" if knobs == INTENT else "")
    file = work / f"{name}.parquet"
    pq.write_table(with_online_lr(events(World(seed=seed, **knobs))), file)
    names = ("--candidate-columns", ",".join(COLUMNS.candidate_columns), "--actions", ",".join(COLUMNS.actions))
    xrex("data", "produce", "--to", work / "log", "--topic", name, "--from", "events", file, *names)
    topic = ("--config", QUICKSTART, f"dataset.log.path={work / 'log'}", f"dataset.topic_name={name}")
    run = train(work / name, *topic)
    ours, best, base = (
        predictor["click"]["auc"] for predictor in (run["metrics"], run["reference"], run["baselines"]["online_lr"])
    )
    values = {f"{name}_gap_closed": (ours - base) / (best - base), f"{name}_beyond_optimum": ours - best}
    if knobs == INTENT:
        blind = train(work / f"{name}-blind", *topic, *without_history())
        values[f"{name}_history_gain"] = ours - blind["metrics"]["click"]["auc"]
    return {key: figure(key, [value], f"--only synthetic --worlds {seed}") for key, value in values.items()}


def without_history() -> tuple[str, str]:
    """Overrides of the quickstart that take every history column from the model."""
    features = load_text(QUICKSTART.read_bytes(), str(QUICKSTART))["dataset"]["features"]
    kept = [feature for feature in features if feature["group"] != "history"]
    return f"dataset.features={json.dumps(kept)}", "dataset.history_actions_column=null"


def figure(name: str, values: list[float], arguments: str) -> Figure:
    """The mean over seeds, with its peer and the command that shows it again."""
    spread = stdev(values) if len(values) > 1 else None
    return Figure(fmean(values), spread, PEERS.get(name, (None, ""))[0], f'make quality ARGS="{arguments}"')


def table(figures: dict[str, Figure]) -> list[str]:
    """Lines: name, ours and its spread, the peer's and whose it is."""
    lines = [f"{'':30}{'ours':>9}{'spread':>9}{'peer':>9}"]
    for name, found in figures.items():
        spread, peer = (f"{x:.4f}" if x is not None else "" for x in (found.spread, found.peer))
        lines.append(f"{name:30}{found.value:9.4f}{spread:>9}{peer:>9}  {PEERS.get(name, (None, ''))[1]}".rstrip())
    return lines


def train(run_dir: Path, *arguments: object) -> dict:
    """The trainer to its end in a new run folder; its summary.json."""
    command(sys.executable, "-m", "xrex.train.trainer_recsys", *arguments, "--run-dir", run_dir)
    print(f"{run_dir.name}: done", file=sys.stderr, flush=True)
    return json.loads((run_dir / "summary.json").read_text())


def xrex(*arguments: object) -> None:
    """`xrex ARGUMENTS`."""
    command(sys.executable, "-m", "xrex.cli", *arguments)


def command(*words: object, **environment: str) -> str:
    """A command's stdout; where it fails, its output is shown and this script ends with 1."""
    done = subprocess.run(
        [str(word) for word in words], env=os.environ | environment, capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}quality: exit {done.returncode} of {' '.join(map(str, words))}")
    return done.stdout


@contextmanager
def kafka(given: str | None) -> Iterator[str]:
    """HOST:PORT of the broker that was given, else of one started for these runs and ended after them."""
    if given is not None:
        yield given
        return
    script = ROOT / "scripts" / "kafka.sh"
    address = command(script, "up", "--fresh", KAFKA_PORT=KAFKA_PORT).split()[-1]
    try:
        yield address
    finally:
        command(script, "down", KAFKA_PORT=KAFKA_PORT)


def installed_movielens() -> Path | None:
    """MovieLens 100K inside the installed recbole, which is not imported."""
    spec = importlib.util.find_spec("recbole")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "dataset_example" / "ml-100k"
    return folder if folder.is_dir() else None


def _worlds(options: argparse.Namespace) -> list[tuple[int, dict[str, float]]]:
    variants = {"standard": STANDARD, "intent": INTENT}
    return [(seed, variants[variant]) for seed in options.worlds for variant in options.variants]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Our figures beside the peers'.")
    parser.add_argument("--only", choices=["movielens", "synthetic"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the runs over MovieLens")
    parser.add_argument("--worlds", type=int, nargs="+", default=[0, 1, 2], help="synthetic worlds")
    parser.add_argument("--variants", nargs="+", choices=["standard", "intent"], default=["standard", "intent"])
    parser.add_argument("--movielens", type=Path, metavar="FOLDER", help="of u.data or NAME.inter")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a broker to use instead of starting one")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "quality", help="folder of latest.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
