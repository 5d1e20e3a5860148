"""`make bench-peers`: our steps beside fbgemm, torch and dense optax; both sides of a ratio are alive in one run and take turns.

Prints a table, writes runs/bench/peers.json in the form of latest.json, exits 1 if a bar is missed. Ratios are peer / ours: above
1 we are faster. Peers run in a Python of their own (.venv-peers, or $PHOENIX_PEERS_PYTHON) on the same batches, with as many
threads and huge pages as ours, and OMP_WAIT_POLICY=PASSIVE: their threads else burn CPU while they wait, which flatters us.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from bench import (
    LARGE,
    MEDIUM,
    PACKED,
    SMALL,
    Row,
    Steps,
    keep,
    left_out,
    now,
    shown,
    wide_ranker_steps,
    zipf_rows,
)
from xrex.embeddings.lookup import lookup
from xrex.embeddings.native import kernel as native
from xrex.embeddings.sparse_update import sparse_update
from xrex.optim.rowwise import RowwiseAdagrad
from xrex.schema.batch import Batch
from xrex.sharding.config import MeshConfig
from xrex.sharding.mesh import AXIS, make_mesh

ROOT = Path(__file__).parents[1]
LATEST = ROOT / "runs" / "bench" / "peers.json"
IDS, DIM = 20_480, 64
NEEDS = {"torch": "2.13", "fbgemm_gpu": "1.8"}
THREADS = os.cpu_count() or 1

Timed = Callable[[int], np.ndarray]
"""How many steps -> float64[2 (wall, CPU)] seconds a step."""


class Peer:
    """A process of peer_steps.py."""

    def __init__(self, python: str, data: dict, folder: Path, held: ExitStack):
        path = folder / "data.npz"
        np.savez(path, **data)
        passive = {"OMP_WAIT_POLICY": "PASSIVE", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        command = [python, str(ROOT / "scripts" / "peer_steps.py"), str(path), str(THREADS)]
        self.process = held.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **passive}
            )
        )
        held.callback(self.process.kill)
        self._answer("READY ")

    def __call__(self, name: str, count: int) -> np.ndarray:
        """float64[2 (wall, CPU)]: seconds a step."""
        assert self.process.stdin
        self.process.stdin.write(f"{name}\t{count}\n")
        self.process.stdin.flush()
        return np.array([float(word) for word in self._answer("SECONDS ").split()])

    def _answer(self, word: str) -> str:
        assert self.process.stdout
        for line in self.process.stdout:  # libraries greet on stdout too
            if line.startswith(word):
                return line.removeprefix(word)
        raise RuntimeError(f"{self.process.args}: ended; its last lines stand above")


def rotated(timed: dict[str, Timed], rounds: int, inner: int) -> dict[str, np.ndarray]:
    """name -> float64[rounds, 2]: every round in another order."""
    seconds = {name: np.zeros((rounds, 2)) for name in timed}
    for call in timed.values():
        call(3)
    for i in range(rounds):
        order = list(timed)[i % len(timed) :] + list(timed)[: i % len(timed)]
        for name in order[:: 1 if i % 2 else -1]:
            seconds[name][i] = timed[name](inner)
    return seconds


def called(call: Callable[[], object]) -> Timed:
    """The seconds of our own calls."""

    def timed(count: int) -> np.ndarray:
        began = now()
        for _ in range(count):
            call()
        return (now() - began) / count

    return timed


def faster(peer: np.ndarray, ours: np.ndarray, bar: float, limit: float | None = None) -> Row:
    """A row of peer / ours, by CPU seconds: other programs on the machine stretch the wall clock."""
    ratios = peer / ours
    cpu, wall = np.median(ratios[:, 1]), np.median(ratios[:, 0])
    low, middle, high = np.quantile(ratios[:, 1], (0.25, 0.5, 0.75))
    ms = [np.median(seconds, axis=0) * 1e3 for seconds in (peer, ours)]
    reason = f"CPU {cpu:.2f} ({ms[0][1]:.2f} / {ms[1][1]:.2f} ms), wall {wall:.2f} ({ms[0][0]:.2f} / {ms[1][0]:.2f} ms)"
    return Row(round(float(cpu), 3), round(float((high - low) / middle), 3), limit, bar, bool(cpu >= bar), reason)


def net(seconds: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Without the loss, which both sides need and neither optimizes; of every round the median loss is taken off."""
    return seconds - np.median(loss, axis=0)


def embedding_rows(python: str | None, num_rows: int, rounds: int) -> dict[str, Row]:
    """One table of `num_rows` rows, 20,480 ids of 64 numbers a step: lookup, loss, backward, row-wise Adagrad."""
    ids, weights = embedding_batches(num_rows)
    name = f"{num_rows // 1_000_000}m" if num_rows >= MEDIUM else f"{num_rows // 1_000}k"
    with ExitStack() as held, tempfile.TemporaryDirectory() as folder:
        timed = {
            "xla": called(embedding_step(ids, weights, num_rows, by_kernel=False)),
            "loss": called(loss_step(weights)),
        }
        if native.available():
            timed["native"] = called(embedding_step(ids, weights, num_rows, by_kernel=True))
        if num_rows == MEDIUM:
            timed["dense optax"] = called(dense_step(ids, weights, num_rows))
        if python:
            peer = Peer(python, {"ids": ids, "weights": weights, "num_rows": num_rows}, Path(folder), held)
            timed |= {f"peer {n}": partial(peer, n) for n in ("fbgemm", "torch sparse Adagrad", "loss")}
        found = rotated(timed, rounds, 10)
    rows = {}
    for peer_name, kernel, bar in (
        ("fbgemm", "native", 1.5),
        ("fbgemm", "xla", 0.8),
        ("torch sparse Adagrad", "native", 4.0),
    ):
        title = f"{peer_name}_over_{kernel}_{name}_rows".replace(" ", "_")
        if kernel not in found or f"peer {peer_name}" not in found:
            rows[title] = left_out(bar, native.why_unavailable() or NO_PEERS)
            continue
        theirs, ours = net(found[f"peer {peer_name}"], found["peer loss"]), net(found[kernel], found["loss"])
        rows[title] = faster(theirs, ours, bar)
    if "dense optax" in found and "native" in found:
        rows[f"dense_optax_over_native_{name}_rows"] = faster(found["dense optax"], found["native"], 30.0)
    return rows


def embedding_batches(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(int32[8, IDS] rows of a table, float32[IDS, DIM] what the toy loss weighs them by)."""
    ids = np.stack([zipf_rows(np.random.default_rng(seed), (IDS,), num_rows) for seed in range(8)])
    return ids, np.random.default_rng(1).standard_normal((IDS, DIM), dtype=np.float32)


def embedding_step(ids: np.ndarray, weights: np.ndarray, num_rows: int, *, by_kernel: bool) -> Callable[[], None]:
    """Our lookup and update of one table around the loss."""
    mesh, rule, dealt = make_mesh(MeshConfig(num_devices=1), 1), RowwiseAdagrad(0.05, 1e-8), PartitionSpec(AXIS)
    loss_of = loss_on(weights)

    def on_device(table, accumulators, scratch, ids):
        rows, gathered = lookup(table, ids[:, None], by_kernel=by_kernel)
        loss, grads = jax.value_and_grad(lambda rows: loss_of(rows[:, 0]))(rows)
        block = table, accumulators, scratch, gathered, grads
        return *sparse_update(*block, rule, jnp.isfinite(loss), by_kernel=by_kernel), loss[None]

    step = jax.jit(
        jax.shard_map(on_device, mesh=mesh, in_specs=(dealt,) * 4, out_specs=(dealt,) * 4, check_vma=False),
        donate_argnums=(0, 1, 2),
    )
    state = [jnp.full((num_rows, DIM), 0.01), jnp.full((num_rows,), 1e-3), jnp.zeros(num_rows, jnp.int32)]
    batches, number = [jnp.asarray(batch) for batch in ids], [0]

    def call() -> None:
        number[0] += 1
        *state[:], loss = step(*state, batches[number[0] % len(batches)])
        jax.block_until_ready((state, loss))

    return call


def loss_on(weights: np.ndarray) -> Callable:
    """The toy loss of peer_steps.py."""
    fixed = jnp.asarray(weights)
    return lambda rows: jnp.mean(jnp.sum(rows * fixed, -1) ** 2)


def loss_step(weights: np.ndarray) -> Callable[[], object]:
    """The loss and its gradient without a table."""
    step, rows = jax.jit(jax.value_and_grad(loss_on(weights))), jnp.full(weights.shape, 0.01)
    return lambda: jax.block_until_ready(step(rows))


def dense_step(ids: np.ndarray, weights: np.ndarray, num_rows: int) -> Callable[[], None]:
    """What one writes first: the table is a weight like any other, and optax.adagrad moves all of it."""
    optimizer, loss_of = optax.adagrad(0.05), loss_on(weights)

    def step(state, ids):
        table, moments = state
        grads = jax.grad(lambda table: loss_of(table[ids]))(table)
        updates, moments = optimizer.update(grads, moments, table)
        return optax.apply_updates(table, updates), moments

    jitted, fresh = jax.jit(step, donate_argnums=0), jnp.full((num_rows, DIM), 0.01)
    state, batches, number = [(fresh, optimizer.init(fresh))], [jnp.asarray(batch) for batch in ids], [0]

    def call() -> None:
        number[0] += 1
        state[0] = jitted(state[0], batches[number[0] % len(batches)])
        jax.block_until_ready(state[0])

    return call


def ranker_rows(python: str | None, rounds: int) -> dict[str, Row]:
    """The wide ranker of bench.py against its twin: 1 + 64 + 16 tokens, all there; 1 + 256 + 16 with histories of 1 to 256."""
    rows = {}
    full = wide_ranker_steps(64), wide_ranker_steps(64, "trainer.micro_batches=8")
    names = {"torch eager": ("eager", 1.0), "torch.compile": ("compile", 0.95)}
    found = beside_twin(python, {"ours": full[0], "ours in micro-batches": full[1]}, list(names), rounds)
    for name, (short, bar) in names.items():
        for ours, suffix in (("ours", ""), ("ours in micro-batches", "_in_micro_batches")):
            title = f"torch_{short}_over_ranker{suffix}_full_length"
            rows[title] = faster(found[name], found[ours], bar) if name in found else left_out(bar, NO_PEERS)
    share = found["peak"] * flops_of(full[0]) / PEAK_FLOPS
    for ours, suffix in (("ours", ""), ("ours in micro-batches", "_in_micro_batches")):
        rows[f"ranker{suffix}_share_of_matmul_peak"] = faster(share, found[ours], 0.6, limit=1.0)
    packed = {"packed": wide_ranker_steps(256, *PACKED, shortest=1)}
    found = beside_twin(python, packed, ["torch.compile"], max(3, rounds // 2))
    title = "torch_compile_padded_over_packed_1_to_256_events"
    rows[title] = (
        faster(found["torch.compile"], found["packed"], 1.6) if "torch.compile" in found else left_out(1.6, NO_PEERS)
    )
    return rows


SIDE = 2048
PEAK_FLOPS = 2 * SIDE**3


def beside_twin(python: str | None, ours: dict[str, Steps], names: list[str], rounds: int) -> dict[str, np.ndarray]:
    """Seconds of our steps, of the twin's on the same batches, and of one large product of matrices."""
    square, product = jnp.ones((SIDE, SIDE)), jax.jit(jnp.matmul)
    timed: dict[str, Timed] = {name: called(steps) for name, steps in ours.items()}
    timed["peak"] = called(lambda: jax.block_until_ready(product(square, square)))
    with ExitStack() as held, tempfile.TemporaryDirectory() as folder:
        if python:
            peer = Peer(python, twins_data(next(iter(ours.values())).batches), Path(folder), held)
            timed |= {name: partial(peer, name) for name in names}
        return rotated(timed, rounds, 1)


def twins_data(batches: list[Batch]) -> dict:
    """The batches as the twin takes them: one table for users and items, whose rows follow those of the users."""

    def ids(batch: Batch) -> np.ndarray:
        user, past, item = batch.user["user"], batch.history["past_item"], batch.candidates["item"]
        items = np.concatenate([past, item], axis=1)
        # A row that is missing is row 0 there: it costs what any other does, and the twin has no cheaper way to pad.
        return np.concatenate([user[:, None], np.where(items < 0, 0, items + SMALL)], axis=1)

    return {
        "ids": np.stack([ids(batch) for batch in batches]),
        "labels": np.stack([batch.labels for batch in batches]),
        "lengths": np.stack([batch.history_length for batch in batches]),
        "num_rows": SMALL + MEDIUM,
        "width": 128,
        "layers": 4,
        "heads": 4,
    }


def flops_of(steps: Steps) -> float:
    """Floating point operations of a step, as XLA counts them."""
    analysis = jax.jit(steps.step).lower(steps.state, steps.scratch, *next(steps.inputs)).compile().cost_analysis()
    return float(analysis["flops"])


NO_PEERS = f"no Python with {' and '.join(f'{name} {version}' for name, version in NEEDS.items())}"


def threads_row() -> Row:
    """Our embedding step on two cores against one, each in a process of its own; more cores must not make it slower."""
    if not hasattr(os, "sched_setaffinity") or THREADS < 2:
        return left_out(0.9, "needs Linux and two cores")
    seconds = {}
    for cores in ("0", "0,1"):
        command = ["taskset", "-c", cores, sys.executable, __file__, "--own-embedding-step"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        seconds[cores] = np.array(json.loads(done.stdout.splitlines()[-1]))[:, [0, 0]]
    return faster(seconds["0"], seconds["0,1"], 0.9)


def own_embedding_step() -> None:
    """For `threads_row`: prints the seconds of 15 rounds."""
    ids, weights = embedding_batches(MEDIUM)
    step = called(embedding_step(ids, weights, MEDIUM, by_kernel=native.available()))
    print(json.dumps(rotated({"ours": step}, 15, 20)["ours"].tolist()))


def peers_python() -> str | None:
    """A Python with what the peers need, or None after a line that says why there is none."""
    given = os.environ.get("PHOENIX_PEERS_PYTHON")
    python = given or str(ROOT / ".venv-peers" / "bin" / "python")
    check = f"import {', '.join(NEEDS)}; " + "; ".join(
        f"assert {name}.__version__.startswith('{version}')" for name, version in NEEDS.items()
    )
    done = subprocess.run([python, "-c", check], capture_output=True, text=True) if Path(python).exists() else None
    if done is not None and done.returncode == 0:
        return python
    why = done.stderr.strip().splitlines()[-1] if done is not None and done.stderr.strip() else "it is not there"
    print(
        f"{python}: {why}: rows with peers are left out (make bench-peers installs them, or set PHOENIX_PEERS_PYTHON)"
    )
    return None


def main() -> int:
    """Measure every row; 1 if one misses its bar."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--own-embedding-step", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.own_embedding_step:
        own_embedding_step()
        return 0
    python, rows = peers_python(), {}
    for num_rows in (SMALL, MEDIUM, LARGE):
        rows |= embedding_rows(python, num_rows, given.rounds)
    rows["embedding_step_one_core_over_two"] = threads_row()
    rows |= ranker_rows(python, given.rounds)
    keep(rows, LATEST)
    print(shown(rows, {}))
    return 1 if any(row.ok is False for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
