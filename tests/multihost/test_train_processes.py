"""Two processes on one machine train one stream together."""

import shutil
import signal
import subprocess
import time

import pytest

from runs import QUICKSTART, ROOT, SMALL, digest, journal, multihost, summary, train, xrex

pytestmark = pytest.mark.multihost


@pytest.fixture(scope="module")
def uneven_log(tmp_path_factory):
    """4 partitions of about 1,000, 1,000, 100 and 0 rows: two are cut after they were produced."""
    folder = tmp_path_factory.mktemp("log")
    command = ("--topic", "engagements", "--rows-per-message", 10)
    xrex("data", "produce", "--to", folder, *command, "--examples", 4000)
    few = tmp_path_factory.mktemp("few")
    xrex("data", "produce", "--to", few, *command, "--examples", 400)
    shutil.rmtree(folder / "engagements" / "2")
    shutil.copytree(few / "engagements" / "2", folder / "engagements" / "2")
    for file in (folder / "engagements" / "3").iterdir():
        file.unlink()
    return folder


@pytest.fixture(scope="module")
def arguments(uneven_log):
    return ("--config", QUICKSTART, f"dataset.log.path={uneven_log}", *SMALL)


@pytest.fixture(scope="module")
def together(arguments, tmp_path_factory):
    """The run folder of two processes, never stopped."""
    run_dir = tmp_path_factory.mktemp("together") / "run"
    done = multihost(2, *arguments, "--run-dir", run_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    return run_dir


def test_two_processes_train_partitions_of_uneven_length_and_end_by_themselves(together):
    rows = journal(together)
    assert len(rows) == len(set(rows)) == summary(together)["examples_trained"] > 2000
    assert len({partition for partition, _, _ in rows}) == 3
    positions = summary(together)["positions"]
    assert all(p["offset"] == p["end_offset"] and p["row"] == 0 for p in positions.values())
    assert set(positions) == {"0", "1", "2", "3"}


def test_both_processes_wrote_what_they_trained(together):
    assert all((together / f"journal-{i}.jsonl").stat().st_size > 0 for i in (0, 1))


def test_two_processes_killed_and_restarted_end_bit_equal_to_a_run_never_stopped(arguments, together, tmp_path):
    run_dir = tmp_path / "run"
    command = [ROOT / "scripts" / "run_multihost.sh", "2", *arguments, "--run-dir", run_dir]
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 90
    while not (run_dir / "checkpoints" / "15").exists():
        assert time.monotonic() < deadline, "no step 15 within 90 s"
        time.sleep(0.05)
    kill_children(process)
    done = multihost(2, *arguments, "--run-dir", run_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digest(run_dir) == digest(together)
    assert summary(run_dir) == summary(together)
    assert journal(run_dir) == journal(together)


@pytest.mark.slow
def test_sigterm_to_two_processes_saves_and_a_restart_ends_bit_equal(arguments, together, tmp_path):
    run_dir = tmp_path / "run"
    slowly = (*arguments, "checkpoint.save_every_steps=2", "--run-dir", run_dir)
    command = [str(word) for word in (ROOT / "scripts" / "run_multihost.sh", 2, *slowly)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    while "step 10" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert process.returncode == 143
    stopped = summary(run_dir)
    assert stopped["status"] == "interrupted"
    assert 10 <= stopped["step"] < summary(together)["step"]
    done = multihost(2, *slowly)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digest(run_dir) == digest(together)
    assert journal(run_dir) == journal(together)


@pytest.mark.slow
def test_a_run_begun_by_two_processes_goes_on_with_one_and_trains_every_row_once(arguments, together, tmp_path):
    run_dir = tmp_path / "run"
    done = multihost(2, *arguments, "--run-dir", run_dir, "trainer.max_steps=20")
    assert done.returncode == 0, done.stdout + done.stderr
    train("--run-dir", run_dir, "trainer.max_steps=null")
    assert journal(run_dir) == journal(together)


def test_a_broken_config_on_process_0_ends_both_with_exit_2_and_its_words(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(QUICKSTART.read_text().replace("max_history: 20", 'max_history: "20"'))
    began = time.monotonic()
    done = multihost(2, "--config", config, "--run-dir", tmp_path / "run")
    assert done.returncode == 2
    assert time.monotonic() - began < 30
    for process in (0, 1):
        assert f"[{process}] {config}: dataset.max_history = '20': expected an integer" in done.stdout + done.stderr
    assert not (tmp_path / "run").exists()


def kill_children(process: subprocess.Popen) -> None:
    """SIGKILL the launcher's processes, all at once, by their ids."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    grandchildren = [
        pid
        for child in children
        for pid in subprocess.run(["pgrep", "-P", child], capture_output=True, text=True).stdout.split()
    ]
    subprocess.run(["kill", "-KILL", *children, *grandchildren], check=False)
    process.kill()
    process.wait()
