"""scripts/launch/: each file starts the trainer so that its processes meet, hears SIGTERM, and restarts by exit code."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from runs import QUICKSTART, ROOT
from xrex.errors import EXIT_USAGE
from xrex.utils.utils import JOIN_TIMEOUT_S

LAUNCH = ROOT / "scripts" / "launch"
SLURM, TPU, JOBSET = LAUNCH / "slurm.sh", LAUNCH / "tpu.sh", LAUNCH / "jobset.yaml"
TRAINER = ["-m", "xrex.train.trainer_recsys"]
VALID = "dry run: the config is valid; nothing was connected to, created or changed"
INTERRUPTED = 128 + signal.SIGTERM

SRUN = """#!/usr/bin/env bash
# Two tasks on this node, with the variables that JAX looks for; ends with the greatest exit code, as srun does.
while [[ $1 == --* ]]; do shift; done
for task in 0 1; do
    SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
done
code=0
for child in $(jobs -p); do
    wait "$child"
    status=$?
    [ $status -le $code ] || code=$status
done
exit $code
"""


@pytest.fixture
def programs(tmp_path) -> Path:
    """A folder of programs that come before those of the machine."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


@pytest.fixture
def environment(programs, tmp_path) -> dict[str, str]:
    """The environment of a login shell: no cluster, no variables of ours."""
    ours = (
        r"SLURM_|OMPI_|TPU_|MEGASCALE_|KUBERNETES_|JOB_|JAX_(NUM|PROCESS|COORDINATOR|LOCAL)|PHOENIX_|CONFIG$|RUN_DIR$"
    )
    kept = {name: value for name, value in os.environ.items() if not re.match(ours, name)}
    path = f"{programs}:{kept['PATH']}"
    return {**kept, "PATH": path, "PYTHON": sys.executable, "CONFIG": str(QUICKSTART), "RUN_DIR": str(tmp_path / "run")}


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def started(command, environment, **more) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(word) for word in command],
        env=environment | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Exit code, lines of stdout, and stderr."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out.splitlines(), err


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


def jobset() -> dict:
    text = JOBSET.read_text().replace(":55527", f":{free_port()}")  # of this test alone
    return YAML(typ="safe", pure=True).load(text)


def job(jobset: dict) -> dict:
    (hosts,) = jobset["spec"]["replicatedJobs"]
    return hosts["template"]["spec"]


def container(pod: dict, kind: str) -> dict:
    (only,) = pod[kind]
    return only


# What stands in the files


@pytest.mark.parametrize("script", [SLURM, TPU])
def test_bash_reads_the_script(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)


def test_the_options_for_sbatch_stand_before_the_first_command_where_sbatch_reads_them():
    lines = SLURM.read_text().splitlines()
    first_command = next(at for at, line in enumerate(lines) if line and not line.startswith("#"))
    found = {at: line.removeprefix("#SBATCH --") for at, line in enumerate(lines) if line.startswith("#SBATCH --")}
    options = dict(option.partition("=")[::2] for option in found.values())
    assert max(found) < first_command
    assert options["ntasks-per-node"] == options["gpus-per-node"]  # JAX gives each process one of them
    assert re.fullmatch(r"TERM@\d+", options["signal"]), "without B: it goes to the processes, not to the script"
    assert {"nodes", "time", "requeue", "open-mode"} <= options.keys()


def test_the_pods_of_the_jobset_are_as_many_as_their_processes():
    spec = job(jobset())
    trainer = container(spec["template"]["spec"], "containers")
    (count,) = [variable["value"] for variable in trainer["env"] if variable["name"] == "JAX_NUM_PROCESSES"]
    assert (spec["completionMode"], spec["parallelism"], spec["completions"]) == ("Indexed", int(count), int(count))


def test_the_jobset_ends_on_exit_code_2_alone_and_restarts_all_pods_on_any_other():
    document = jobset()
    spec, policy = job(document), document["spec"]["failurePolicy"]
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [EXIT_USAGE]}}
    ]
    (rule,) = policy["rules"]
    assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])  # or the API refuses it
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert policy["maxRestarts"] > 0
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")


def test_a_pod_has_time_to_save_and_the_jobset_waits_for_it():
    document = jobset()
    assert job(document)["template"]["spec"]["terminationGracePeriodSeconds"] > 30  # what Kubernetes gives by itself
    assert document["spec"]["failurePolicy"]["restartStrategy"] == "BlockingRecreate"


def test_the_processes_of_a_cluster_have_longer_to_come_than_those_of_one_machine():
    pod = job(jobset())["template"]["spec"]
    limits = [
        int(found) for script in (SLURM, TPU) for found in re.findall(r"JOIN_TIMEOUT_S:-(\d+)}", script.read_text())
    ]
    limits += [int(v["value"]) for v in container(pod, "containers")["env"] if v["name"] == "PHOENIX_JOIN_TIMEOUT_S"]
    assert len(limits) == 3
    assert min(limits) > JOIN_TIMEOUT_S


def test_the_readme_names_every_file():
    readme = (LAUNCH / "README.md").read_text()
    assert all(f"scripts/launch/{path.name}" in readme for path in LAUNCH.iterdir() if path.name != "README.md")


# The trainer that they start


@pytest.mark.slow
def test_two_tasks_of_a_slurm_step_are_one_run(environment, programs, tmp_path):
    program(programs, "srun", SRUN)
    batch = {"SLURM_JOB_ID": "4242", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    code, out, err = ended(started([SLURM, "--dry-run"], environment, JAX_COORDINATOR_PORT=free_port(), **batch))
    assert code == 0, err
    # Once from the script's own check, once from process 0 of the two; process 1 is silent.
    assert out == [f"run folder {tmp_path / 'run'}", VALID] * 2
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_hosts_of_a_tpu_pod_are_one_run(environment, tmp_path):
    pod = {
        "JAX_FORCE_TPU_INIT": "1",  # there is no TPU in this machine
        "JAX_PLATFORMS": "cpu",
        "TPU_WORKER_HOSTNAMES": "localhost,localhost",
        "MEGASCALE_COORDINATOR_ADDRESS": "",  # one slice; unset, JAX would ask the cloud
        "MEGASCALE_NUM_SLICES": "1",
        "MEGASCALE_SLICE_ID": "0",
        "JAX_COORDINATOR_PORT": free_port(),
    }
    hosts = [started([TPU, "--dry-run"], environment, TPU_WORKER_ID=str(host), **pod) for host in range(2)]
    (code_0, out_0, err_0), (code_1, out_1, err_1) = map(ended, hosts)
    assert (code_0, code_1) == (0, 0), err_0 + err_1
    said = [f"run folder {tmp_path / 'run'}", VALID]
    assert (out_0, out_1) == (said * 2, said)


@pytest.mark.slow
def test_two_pods_of_the_jobset_are_one_run_after_each_has_checked_its_config(environment, tmp_path):
    pod = job(jobset())["template"]["spec"]
    check, trainer = container(pod, "initContainers"), container(pod, "containers")
    assert check["command"] == [*trainer["command"], "--dry-run"]
    assert (check["args"], check["image"]) == (trainer["args"], trainer["image"])
    code, out, err = ended(started(words_of(check, tmp_path), in_pod(environment, check, 0)))
    assert (code, out[1:]) == (0, [VALID]), err
    words = [*words_of(trainer, tmp_path), "--dry-run"]
    pods = [started(words, in_pod(environment, trainer, index)) for index in range(2)]
    (code_0, out_0, err_0), (code_1, out_1, err_1) = map(ended, pods)
    assert (code_0, code_1) == (0, 0), err_0 + err_1
    assert (out_0[1:], out_1) == ([VALID], [])


def words_of(container: dict, tmp_path: Path) -> list[str]:
    """The container's command line, with the Python, the files and the run folder of this machine."""
    command: list[str] = [*container["command"], *container["args"]]
    assert command[:3] == ["python", *TRAINER]
    here = {"/runs/ranker": str(tmp_path / "run"), "configs/ranker_kafka.yaml": str(ROOT / "configs/ranker_kafka.yaml")}
    return [sys.executable, *(here.get(word, word) for word in command[1:])]


def in_pod(environment: dict[str, str], container: dict, index: int) -> dict[str, str]:
    """The variables of the container in the pod of this index, as Kubernetes and JobSet set them."""
    annotations = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        "metadata.annotations['jobset.sigs.k8s.io/coordinator']": "localhost",
    }
    variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": str(index)}
    for variable in container["env"]:
        text = variable.get("value") or annotations[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        variables[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)
    return environment | variables


@pytest.mark.parametrize("script", [SLURM, TPU])
def test_a_wrong_config_ends_the_script_with_exit_code_2_before_anything_is_started(
    script, environment, programs, tmp_path
):
    program(programs, "srun", f"#!/bin/sh\ntouch {tmp_path}/allocated\n")
    code, _, err = ended(started([script, "trainer.max_step=3"], environment, SLURM_JOB_ID="1", MAX_RESTARTS="9"))
    assert (code, err) == (2, "command line: trainer.max_step: unknown field; did you mean max_steps?\n")
    assert not (tmp_path / "allocated").exists()


# Signals and restarts


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [
        (0, "", False),
        (1, "", True),
        (2, "", False),
        (130, "", False),
        (128 + signal.SIGKILL, "1", True),
        (1, "2", False),
        (INTERRUPTED, "2", True),
    ],
)
def test_a_slurm_job_goes_back_into_the_queue_by_its_exit_code(
    code, restarts, requeued, environment, programs, tmp_path
):
    program(programs, "srun", f"#!/bin/sh\nexit {code}\n")
    program(programs, "scontrol", f'#!/bin/sh\necho "$@" > {tmp_path}/told\n')
    job = {"SLURM_JOB_ID": "7", "PYTHON": "true", "MAX_RESTARTS": "2"}
    job |= {"SLURM_RESTART_COUNT": restarts} if restarts else {}
    assert ended(started([SLURM], environment, **job))[0] == code
    told = tmp_path / "told"
    assert (told.read_text() if told.exists() else "") == ("requeue 7\n" if requeued else "")


def test_a_slurm_job_that_was_told_to_end_as_a_whole_is_left_to_slurm(environment, programs, tmp_path):
    program(programs, "srun", f"#!/bin/sh\nkill -TERM $PPID\nexit {INTERRUPTED}\n")
    program(programs, "scontrol", f"#!/bin/sh\ntouch {tmp_path}/told\n")
    assert ended(started([SLURM], environment, PYTHON="true", SLURM_JOB_ID="7"))[0] == INTERRUPTED
    assert not (tmp_path / "told").exists()


@pytest.mark.parametrize(
    ("codes", "starts"),
    [([0], 1), ([2], 1), ([130], 1), ([1, INTERRUPTED, 0], 3), ([1, 1, 1, 1], 3)],
)
def test_a_tpu_host_starts_the_trainer_again_by_its_exit_code(codes, starts, environment, programs, tmp_path):
    (tmp_path / "codes").write_text("\n".join(map(str, codes)))
    trainer = f"""#!/usr/bin/env bash
[[ "$*" != *--dry-run ]] || exit 0
echo start >> {tmp_path}/starts
exit "$(sed -n "$(wc -l < {tmp_path}/starts)p" {tmp_path}/codes)"
"""
    host = {"PYTHON": str(program(programs, "trainer", trainer)), "PAUSE_S": "0", "MAX_RESTARTS": "2"}
    assert ended(started([TPU], environment, **host))[0] == codes[starts - 1]
    assert (tmp_path / "starts").read_text().count("start") == starts


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_tpu_host_is_told_reaches_its_trainer_which_ends_it_in_order(number, environment, programs, tmp_path):
    trainer = """#!/usr/bin/env bash
[[ "$*" != *--dry-run ]] || exit 0
trap 'sleep 0.5; echo saved; exit 143' TERM
echo training
while :; do sleep 0.05; done
"""
    process = started([TPU], environment, PYTHON=str(program(programs, "trainer", trainer)))
    assert process.stdout
    assert process.stdout.readline() == "training\n"
    process.send_signal(number)
    assert ended(process)[:2] == (INTERRUPTED, ["saved"])
