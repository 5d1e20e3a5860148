"""The native kernel against a float64 numpy loop over distinct rows, and against XLA; how it is built and found."""

import os
import shutil
import stat
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from compilations import compilations, compilations_logged
from xrex.embeddings.lookup import gather_owned, lookup, of_all_devices, sums_of_mine
from xrex.embeddings.native import build
from xrex.embeddings.native import kernel as native
from xrex.embeddings.sparse_update import sparse_update
from xrex.optim.rowwise import RowwiseAdagrad

RULE = {"learning_rate": 0.1, "epsilon": 0.05}
DIMS = (1, 7, 16, 64, 128)
COMPILER = build._compiler()

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture
def kernel():
    """Skips, but never where a compiler could have built it."""
    if not native.available():
        (pytest.fail if COMPILER else pytest.skip)(native.why_unavailable())


class Case:
    """A block of 300 rows and `n` ids: many equal, some no rows of the block, the first and the last row among them."""

    def __init__(self, seed, dim, n=500, num_rows=300):
        rng = np.random.default_rng(seed)
        self.block = rng.normal(size=(num_rows, dim)).astype(np.float32)
        self.accum = rng.uniform(1e-3, 1, num_rows).astype(np.float32)
        self.ids = rng.zipf(1.3, n).clip(max=num_rows).astype(np.int32) - 1
        outside = [num_rows, num_rows + 1, 2**31 - 1, -1, -num_rows, -(2**31)]
        self.ids = np.where(rng.random(n) < 0.3, rng.choice(outside, n), self.ids).astype(np.int32)
        self.ids[:8] = [*outside, 0, num_rows - 1]
        self.grads = rng.normal(size=(n, dim)).astype(np.float32)

    @property
    def owned(self):
        return (self.ids >= 0) & (self.ids < len(self.block))

    def updated(self, applied=True):
        """What the kernel makes of copies."""
        arguments = map(jnp.array, (self.block, self.accum, self.ids, self.grads, np.bool_(applied)))
        program = jax.jit(partial(native.update, **RULE), donate_argnums=(0, 1))
        return tuple(map(np.asarray, program(*arguments)))

    def oracle(self):
        """One Adagrad step a distinct row on the sum of its gradients, in float64."""
        block, accum = self.block.astype(np.float64), self.accum.astype(np.float64)
        for row in np.unique(self.ids[self.owned]):
            gradient = self.grads[self.ids == row].astype(np.float64).sum(axis=0)
            accum[row] += np.mean(gradient**2)
            block[row] -= RULE["learning_rate"] * gradient / (np.sqrt(accum[row]) + RULE["epsilon"])
        return block, accum


@pytest.mark.parametrize("dim", DIMS)
def test_a_gather_gives_the_rows_and_zero_for_an_id_outside_of_the_block(kernel, dim):
    case = Case(0, dim)
    rows = jax.jit(native.gather)(case.block, case.ids)
    want = np.where(case.owned[:, None], case.block[np.where(case.owned, case.ids, 0)], 0)
    np.testing.assert_array_equal(rows, want, strict=True)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("seed", range(4))
def test_every_distinct_row_gets_one_step_on_the_sum_of_its_gradients(kernel, seed, dim):
    case = Case(seed, dim)
    block, accum = case.updated()
    want_block, want_accum = case.oracle()
    np.testing.assert_allclose(accum, want_accum, rtol=5e-6)
    np.testing.assert_allclose(block, want_block, rtol=2e-6, atol=2e-6)


def test_calls_of_different_sizes_do_not_disturb_each_other(kernel):
    """A call works in what a larger one before it has left."""
    for seed, (n, dim) in enumerate([(4000, 64), (9, 64), (5000, 3), (8, 1), (700, 128), (4000, 2)]):
        case = Case(seed, dim, n=n, num_rows=70 + seed)
        np.testing.assert_allclose(case.updated()[0], case.oracle()[0], rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2**10, -1021, None])
def test_rows_that_are_all_different_are_kept_apart(kernel, stride):
    """Neighbours, at equal distances, downwards, and anywhere."""
    anywhere = np.random.default_rng(0).permutation(1_000_000)[:3000]
    ids = anywhere if stride is None else np.arange(3000)[:: np.sign(stride)] * abs(stride)
    case = Case(0, 1, n=len(ids), num_rows=int(ids.max()) + 1)
    case.ids = ids.astype(np.int32)
    block, accum = case.updated()
    want_block, want_accum = case.block.copy(), case.accum.copy()
    want_accum[ids] += case.grads[:, 0] ** 2
    want_block[ids] -= np.float32(0.1) * case.grads / (np.sqrt(want_accum[ids]) + np.float32(RULE["epsilon"]))[:, None]
    np.testing.assert_array_equal(accum, want_accum)
    np.testing.assert_array_equal(block, want_block)


def test_gradients_of_a_row_are_added_in_the_order_of_their_positions(kernel):
    """One row, one number: a float32 sum from left to right, which another order would not give."""
    case = Case(0, 1)
    case.ids[:] = 5
    total = np.float32(0)
    for gradient in case.grads[:, 0]:
        total += gradient
    assert total not in (case.grads.sum(), np.float32(case.grads[:, 0].astype(np.float64).sum()))
    assert case.updated()[1][5] == case.accum[5] + total * total


def test_rows_that_no_id_names_stay_bit_equal(kernel):
    case = Case(1, 16)
    untouched = np.setdiff1d(np.arange(len(case.block)), case.ids)
    assert len(untouched) > 100
    block, accum = case.updated()
    np.testing.assert_array_equal(block[untouched], case.block[untouched])
    np.testing.assert_array_equal(accum[untouched], case.accum[untouched])


def test_an_update_that_is_not_applied_changes_nothing(kernel):
    case = Case(2, 16)
    block, accum = case.updated(applied=False)
    np.testing.assert_array_equal(block, case.block)
    np.testing.assert_array_equal(accum, case.accum)


@pytest.mark.parametrize("n", [0, 1])
def test_no_id_at_all_is_no_update(kernel, n):
    case = Case(0, 16)
    case.ids, case.grads = case.ids[:n], case.grads[:n]  # the one lies outside of the block
    np.testing.assert_array_equal(case.updated()[0], case.block)
    assert jax.jit(native.gather)(case.block, case.ids).shape == (n, 16)


def test_arguments_that_are_not_donated_are_left_as_they_are(kernel):
    case = Case(3, 16)
    block, accum = jnp.array(case.block), jnp.array(case.accum)
    moved = jax.jit(partial(native.update, **RULE))(block, accum, case.ids, case.grads, np.True_)
    np.testing.assert_array_equal(moved[0], case.updated()[0])
    np.testing.assert_array_equal(block, case.block)
    np.testing.assert_array_equal(accum, case.accum)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("accum", np.ones(299, np.float32)),
        ("grads", np.ones((499, 16), np.float32)),
        ("grads", np.ones((500, 15), np.float32)),
    ],
)
def test_shapes_that_do_not_fit_are_refused_before_any_memory_is_touched(kernel, name, wrong):
    case = Case(0, 16)
    setattr(case, name, wrong)
    with pytest.raises(
        Exception, match=r"update: accumulators must be \[rows of the block\], gradients \[ids, its width\]"
    ):
        case.updated()


# In the step's surroundings: on 1 and 4 devices, donated, inside shard_map.


class Stepping:
    """A table of 1,024 rows that is updated again and again; the gradients depend on the rows, as a model's do."""

    def __init__(self, num_devices, on_device, dim=16):
        mesh, rows = Mesh(np.array(jax.devices()[:num_devices]), ("data",)), PartitionSpec("data")
        self.place = partial(jax.device_put, device=NamedSharding(mesh, rows))
        rng = np.random.default_rng(7)
        self.table = self.place(rng.normal(size=(1024, dim)).astype(np.float32))
        self.accum = self.place(np.full(1024, 0.01, np.float32))
        self.scratch = self.place(np.zeros(1024, np.int32))
        program = jax.shard_map(on_device, mesh=mesh, in_specs=(rows,) * 5, out_specs=(rows,) * 3, check_vma=False)
        self.program = jax.jit(program, donate_argnums=(0, 1, 2))
        self.dim = dim

    def run(self, steps, after_each=lambda: None):
        for seed in range(steps):
            rng = np.random.default_rng(seed)
            ids = rng.zipf(1.2, (16, 9)).clip(max=1024).astype(np.int32) - 1
            ids[rng.random(ids.shape) < 0.2] = -1  # padding
            noise = rng.normal(size=(16, 9, self.dim)).astype(np.float32)
            moved = self.program(self.table, self.accum, self.scratch, *map(self.place, (ids, noise)))
            self.table, self.accum, self.scratch = jax.block_until_ready(moved)
            after_each()
        return np.array(self.table), np.array(self.accum)

    def pointers(self):
        return [s.data.unsafe_buffer_pointer() for x in (self.table, self.accum) for s in x.addressable_shards]


def by_the_kernel(table, accum, scratch, ids, noise):
    local = gather_owned(table, of_all_devices(ids.reshape(-1))).local_ids_N
    rows = sums_of_mine(native.gather(table, local)).reshape(noise.shape)
    grads = of_all_devices((rows * 0.1 + noise).reshape(-1, table.shape[1]))
    return *native.update(table, accum, local, grads, jnp.asarray(True), **RULE), scratch


def by_xla(table, accum, scratch, ids, noise):
    rows, gathered = lookup(table, ids)
    rule = RowwiseAdagrad(**RULE)
    return sparse_update(table, accum, scratch, gathered, rows * 0.1 + noise, rule, jnp.asarray(True))


@pytest.mark.parametrize("num_devices", [1, 4])
def test_many_steps_end_where_those_by_xla_end(kernel, num_devices):
    table, accum = Stepping(num_devices, by_the_kernel).run(20)
    want_table, want_accum = Stepping(num_devices, by_xla).run(20)
    np.testing.assert_allclose(accum, want_accum, rtol=1e-5)
    np.testing.assert_allclose(table, want_table, atol=1e-5)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_the_table_is_updated_in_place_200_times_and_nothing_is_compiled_again(kernel, num_devices, caplog):
    stepping = Stepping(num_devices, by_the_kernel)
    stepping.run(1)
    places = stepping.pointers()

    def still_there():
        assert stepping.pointers() == places

    with compilations_logged(caplog):
        stepping.run(200, still_there)
    assert not compilations(caplog)
    assert len(places) == 2 * num_devices


@pytest.mark.parametrize("num_devices", [1, 4])
def test_the_same_steps_give_the_same_bits(kernel, num_devices):
    first, second = (Stepping(num_devices, by_the_kernel, dim=7).run(30) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


# Building and finding it, in fresh processes.

DIGEST = """
import hashlib, sys
import jax, numpy as np
from functools import partial
from xrex.embeddings.native import kernel as native
if not native.available():
    sys.exit(native.why_unavailable())
rng = np.random.default_rng(0)
block, accum = rng.normal(size=(100, 77)).astype("f4"), np.full(100, .01, "f4")
for _ in range(5):
    ids, grads = rng.integers(0, 120, 400).astype("i4"), rng.normal(size=(400, 77)).astype("f4")
    block, accum = jax.jit(partial(native.update, learning_rate=.1, epsilon=1e-8))(block, accum, ids, grads, np.True_)
print(hashlib.sha256(np.asarray(block).tobytes() + np.asarray(accum).tobytes()).hexdigest())
"""


def python(*arguments, folder, **environment):
    """Run Python with libraries of this folder alone."""
    environment = {**os.environ, "PHOENIX_NATIVE_DIR": str(folder), **environment}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120)


def built_by(folder, **environment):
    """The line that a build into this folder prints; it always ends well."""
    done = python("-m", "xrex.embeddings.native.build", folder=folder, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    return line.removeprefix("native kernel: ")


def fake_compiler(tmp_path, body):
    """A program that stands in for the compiler."""
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@needs_compiler
@pytest.mark.slow
def test_a_library_for_any_cpu_gives_the_bits_that_one_for_this_cpu_gives(tmp_path):
    refusing = fake_compiler(tmp_path, f'case "$*" in *-march=native*) exit 1;; esac\nexec {COMPILER} "$@"')
    line = built_by(tmp_path / "any", CXX=refusing)
    assert line.startswith(f"built {tmp_path}/any/embeddings-")
    assert line.endswith(", not tuned to this CPU)")
    line = built_by(tmp_path / "this")
    assert line.startswith(f"built {tmp_path}/this/embeddings-")
    assert "not tuned" not in line
    digests = [python("-c", DIGEST, folder=tmp_path / name) for name in ("any", "this", "this")]
    assert [d.returncode for d in digests] == [0, 0, 0]
    assert len({d.stdout for d in digests}) == 1


@needs_compiler
@pytest.mark.slow
def test_what_is_built_is_found_and_not_built_again(tmp_path):
    folder = tmp_path / "native"
    found = python("-c", DIGEST, folder=folder)
    assert found.returncode == 1
    assert found.stderr == f"no native kernel for this source, jaxlib and CPU in {folder}: run `make setup`\n"
    assert built_by(folder).startswith("built ")
    (library,) = folder.iterdir()
    assert built_by(folder) == f"up to date, {library}"
    library.write_text("no library")
    found = python("-c", DIGEST, folder=folder)
    assert found.returncode == 1
    assert found.stderr.startswith("the native kernel could not be loaded (")
    assert found.stderr.endswith(f"): remove {library} and run `make setup`\n")


def test_a_library_that_was_built_for_another_cpu_source_or_jaxlib_is_not_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PHOENIX_NATIVE_DIR", str(tmp_path))
    library = tmp_path / f"embeddings-{build._fits_here()}-0123.so"
    library.touch()
    assert build.built() == library

    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(build, "CPUINFO", cpuinfo)
    names = set()
    for flags in ("sse2 avx2", "avx2 sse2", "sse2 avx2 avx512f"):
        cpuinfo.write_text(
            f"processor: 0\nmodel: 1\ncpu MHz\t: 2{len(names)}\nflags\t\t: {flags}\n\nprocessor: 1\nflags: none\n"
        )
        assert build.built() is None
        names.add(build._fits_here())
    assert len(names) == 2  # the order of the flags and the clock rate do not matter
    monkeypatch.undo()

    monkeypatch.setenv("PHOENIX_NATIVE_DIR", str(tmp_path))
    other = tmp_path / "kernel.cc"
    other.write_text(build.SOURCE.read_text() + "\n")
    monkeypatch.setattr(build, "SOURCE", other)
    assert build.built() is None
    monkeypatch.undo()

    monkeypatch.setenv("PHOENIX_NATIVE_DIR", str(tmp_path))
    monkeypatch.setattr(build.importlib.metadata, "version", lambda name: f"{name} of tomorrow")
    assert build.built() is None


def test_without_a_compiler_the_build_says_so_and_ends_well(tmp_path):
    line = built_by(tmp_path, PATH=str(tmp_path), CXX="")
    assert line == (
        "not built, no C++ compiler ($CXX, c++, g++ or clang++): tables are updated by XLA alone, more slowly; "
        "install one (Debian: apt-get install g++)"
    )
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(tmp_path):
    body = 'case "$*" in --version) echo "cc 1.0"; exit;; esac\necho "In file x:" >&2\necho "error: no such option" >&2\nexit 1'
    compiler, folder = fake_compiler(tmp_path, body), tmp_path / "native"
    line = built_by(folder, CXX=compiler)
    assert line == f"not built, {compiler}: error: no such option; tables are updated by XLA alone, more slowly"
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    if not (program := shutil.which("true")):
        pytest.skip("no `true` to stand in for a compiler")
    compiler = fake_compiler(tmp_path, f'echo "cc 1.0"; exec {program}')
    (tmp_path / "file").touch()
    line = built_by(tmp_path / "file" / "native", CXX=compiler)
    assert line.startswith("not built, Not a directory: ")
    assert line.endswith("; set PHOENIX_NATIVE_DIR to a folder that can be written")


def test_a_compiler_that_cannot_even_tell_its_version_is_named(tmp_path):
    compiler = fake_compiler(tmp_path, "exit 3")
    assert built_by(tmp_path, CXX=compiler) == (
        f"not built, {compiler}: exit code 3; tables are updated by XLA alone, more slowly"
    )
