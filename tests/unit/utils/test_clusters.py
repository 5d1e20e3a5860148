"""start_distributed in a cluster: what JAX finds out by itself, and what is said where it cannot."""

import inspect
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from jax._src.clusters import ompi_cluster

from xai_configlib import ConfigError
from xrex.utils import utils

SLURM = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_NODELIST": "node[007-009,012],other",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
TPU = {
    "TPU_WORKER_ID": "1",
    "TPU_WORKER_HOSTNAMES": "localhost,other",
    "MEGASCALE_COORDINATOR_ADDRESS": "",
    "MEGASCALE_NUM_SLICES": "1",
    "MEGASCALE_SLICE_ID": "0",
}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2", "HOSTNAME": "localhost"}
TO_SET = "set JAX_NUM_PROCESSES, JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS, or JAX_NUM_PROCESSES=1 for a process that is alone"
OF_OPEN_MPI_5 = (
    "RuntimeError: Open MPI 5 or newer requires mpi4py for distributed initialization."
    if "mpi4py" in inspect.getsource(ompi_cluster)
    else "it sees no others"
)
"""Older releases of JAX look for Open MPI 4 alone."""


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Only what a test sets; a port of the test's own."""
    for name in {*SLURM, *OPEN_MPI, *TPU, *KUBERNETES, "OMPI_VERSION", "JAX_NUM_PROCESSES", "JAX_LOCAL_DEVICE_IDS"}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_COORDINATOR_PORT", "4321")


def detected(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return utils._detected(1)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM, utils._Cluster("node007:4321", 4, 3, [1])),
        (SLURM | {"JAX_LOCAL_DEVICE_IDS": "0,1"}, utils._Cluster("node007:4321", 4, 3, None)),
        (SLURM | {"JAX_COORDINATOR_ADDRESS": "other:1"}, utils._Cluster("other:1", 4, 3, [1])),
        (OPEN_MPI, utils._Cluster("10.96.0.1:4321", 2, 1, [1])),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),  # a pod of no indexed job
        ({"SLURM_JOB_ID": "42", "SLURM_NTASKS": "4"}, None),  # the batch script, outside of any step
    ],
)
def test_jax_finds_the_processes_of_a_cluster(environment, expected, monkeypatch):
    assert detected(monkeypatch, environment) == expected


def test_jax_finds_the_hosts_of_a_tpu_pod(monkeypatch):
    monkeypatch.setattr("jax._src.clusters.cloud_tpu_cluster.running_in_cloud_tpu_vm", True)
    monkeypatch.setattr("jax._src.clusters.cluster.running_in_cloud_tpu_vm", True)
    assert detected(monkeypatch, TPU) == utils._Cluster("localhost:4321", 2, 1, None)


def test_jax_finds_the_pods_of_a_jobset_through_the_package_kubernetes(monkeypatch):
    names = {"job-name": "xrex-hosts-0", "jobset.sigs.k8s.io/jobset-name": "xrex"}
    owner = SimpleNamespace(controller=True, kind="Job")
    pod = SimpleNamespace(metadata=SimpleNamespace(labels=names, owner_references=[owner]))
    job = SimpleNamespace(
        metadata=SimpleNamespace(name="xrex-hosts-0", labels=names), spec=SimpleNamespace(parallelism=3)
    )
    core = SimpleNamespace(list_namespaced_pod=lambda namespace, field_selector: SimpleNamespace(items=[pod]))
    package: Any = ModuleType("kubernetes")
    package.config = SimpleNamespace(load_incluster_config=lambda: None)
    package.client = SimpleNamespace(
        CoreV1Api=lambda: core,
        BatchV1Api=lambda: SimpleNamespace(read_namespaced_job=lambda name, namespace: job),
        exceptions=SimpleNamespace(ApiException=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "kubernetes", package)
    cluster = "jax._src.clusters.k8s_cluster"
    monkeypatch.setattr(f"{cluster}.K8sCluster._namespace", lambda: "default")
    monkeypatch.setattr(f"{cluster}.socket", SimpleNamespace(gethostbyname=lambda host: host, gaierror=OSError))
    assert detected(monkeypatch, KUBERNETES) == utils._Cluster("xrex-hosts-0-0.xrex:4321", 3, 2, None)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            KUBERNETES,
            "Kubernetes: JAX cannot tell which processes run together (it needs the package kubernetes for that)",
        ),
        (TPU, "a TPU pod: JAX cannot tell which processes run together (it needs the package libtpu for that)"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI: JAX cannot tell which processes run together (it sees no others)"),
        (
            {name: value for name, value in OPEN_MPI.items() if name != "OMPI_MCA_orte_hnp_uri"},
            f"Open MPI: JAX cannot tell which processes run together ({OF_OPEN_MPI_5})",
        ),
        (
            SLURM | {"SLURM_NTASKS": "many"},
            "Slurm: JAX cannot tell which processes run together (ValueError: invalid literal for int() with base 10: 'many')",
        ),
    ],
)
def test_a_process_that_cannot_know_the_others_does_not_train_alone(environment, words, monkeypatch):
    with pytest.raises(ConfigError) as raised:
        detected(monkeypatch, environment)
    assert str(raised.value) == f"{words}: {TO_SET}"


PROGRAM = """
import jax
from xrex.utils import utils
utils._abort_slowly = utils._await_others = lambda *anything: None
def initialize(*what, **limits):
    print(what, limits)
    raise SystemExit
jax.distributed.initialize = initialize
utils.start_distributed()
"""


def test_what_the_environment_says_goes_before_detection_and_all_three_limits_reach_jax(monkeypatch):
    given = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "localhost:1"}
    for name, value in {**SLURM, **given}.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    # No number of a device: a process that Slurm started has all of its machine's, not only that of its SLURM_LOCALID.
    assert done.stdout.startswith("('localhost:1', 2, 0, None, 'deactivate') {"), done.stderr
    assert all(f"'{name}': " in done.stdout for name in ("initialization_timeout", "heartbeat_timeout_seconds"))
    assert "'shutdown_timeout_seconds': " in done.stdout


def test_one_process_given_by_number_is_alone_in_any_cluster(monkeypatch):
    for name, value in {**SLURM, "JAX_NUM_PROCESSES": "1"}.items():
        monkeypatch.setenv(name, value)
    utils.start_distributed()
    assert utils.process_count() == 1
