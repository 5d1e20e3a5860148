"""A step whose bytes are not those that were saved: it is found, told, and the one before it is used."""

import shutil

import pytest

from runs import digest, summary, train, xrex


def flip(file, at: int = -1) -> None:
    """Change one bit of one byte; by default in the middle of the file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if at < 0 else at] ^= 1
    file.write_bytes(content)


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.fixture
def copy(whole_run, tmp_path):
    """A copy of `whole_run` whose newest step is 75 of 80."""
    run_dir = tmp_path / "run"
    shutil.copytree(whole_run, run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "80")
    return run_dir


def test_verify_tells_a_whole_step_from_one_with_a_flipped_byte(copy):
    step = copy / "checkpoints" / "75"
    assert "arrays" in xrex("checkpoint", "verify", copy).stdout
    flip(largest_file(step / "state"))
    damaged = xrex("checkpoint", "verify", copy, check=False)
    assert damaged.returncode == 1
    assert f"{step}: " in damaged.stderr
    assert "Traceback" not in damaged.stderr


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "part", ["state", pytest.param("positions.json", marks=SLOW), pytest.param("progress.json", marks=SLOW)]
)
def test_a_run_goes_on_from_the_step_before_a_damaged_one_and_ends_as_if_never_stopped(copy, whole_run, part):
    step = copy / "checkpoints" / "75"
    flip(largest_file(step / part) if part == "state" else step / part)
    done = train("--run-dir", copy)
    assert f"{step} is damaged: moved aside to 75.damaged, the step before it is used" in done.stderr
    assert digest(copy) == digest(whole_run)
    assert summary(copy) == summary(whole_run)
    assert (copy / "checkpoints" / "75.damaged").is_dir()


@pytest.mark.slow
def test_without_an_older_step_damage_ends_the_run_and_touches_nothing(copy):
    for older in ("45", "60"):
        shutil.rmtree(copy / "checkpoints" / older, ignore_errors=True)
    flip(copy / "checkpoints" / "75" / "positions.json")
    before = {path: path.read_bytes() for path in (copy / "checkpoints").rglob("*") if path.is_file()}
    done = train("--run-dir", copy, check=False)
    assert done.returncode == 1
    assert "no step is older: restore one from a copy" in done.stderr
    assert {path: path.read_bytes() for path in (copy / "checkpoints").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_damaged_step_of_another_run_is_an_error_and_stays_where_it_is(copy, tmp_path):
    step = copy / "checkpoints" / "75"
    flip(largest_file(step / "state"))
    done = train("--checkpoint", step, "--run-dir", tmp_path / "child", check=False)
    assert done.returncode == 1
    assert "resume from another step" in done.stderr
    assert step.is_dir()
