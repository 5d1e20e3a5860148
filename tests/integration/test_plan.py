"""`xrex plan` against what a run really takes."""

import json
import os
import subprocess
import sys

import pytest

from runs import QUICKSTART, TRAINER, xrex


def planned(*overrides) -> dict:
    return json.loads(xrex("plan", QUICKSTART, "--json", *overrides).stdout)


PEAK_OF_A_CHILD = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
"""A process of its own between the tests and the trainer: Linux counts a child from the size of the process that starts it."""


def peak_bytes(*arguments) -> int:
    """The largest resident size of the trainer's process, which compiles for itself: a compiler's memory is in each."""
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-c", PEAK_OF_A_CHILD, *TRAINER, *map(str, arguments)]
    return int(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout)


def with_items(rows: int) -> str:
    tables = json.loads(xrex("config", "show", QUICKSTART).stdout)["dataset"]["tables"]
    for table in tables:
        table["num_embeddings"] = rows if table["name"] == "items" else table["num_embeddings"]
    return f"dataset.tables={json.dumps(tables)}"


@pytest.mark.slow
def test_what_a_larger_table_takes_is_planned_right_to_a_tenth(small, tmp_path):
    few, many = with_items(65_536), with_items(4_000_000)
    command = (*small, "trainer.max_steps=20")
    measured = [peak_bytes(*command, tables, "--run-dir", tmp_path / str(len(tables))) for tables in (few, many)]
    plans = [planned(tables)["total"] for tables in (few, many)]
    assert measured[1] - measured[0] == pytest.approx(plans[1] - plans[0], rel=0.1)


@pytest.mark.slow
def test_the_largest_table_is_the_one_that_just_fits():
    found = planned("--memory", 1)
    assert found["available"] == 2**30
    largest = found["largest_rows"]
    users = found["largest"]["table"]
    tables = json.loads(xrex("config", "show", QUICKSTART).stdout)["dataset"]["tables"]

    def total(rows):
        for table in tables:
            table["num_embeddings"] = rows if table["name"] == users else table["num_embeddings"]
        return planned("--memory", 1, f"dataset.tables={json.dumps(tables)}")["total"]

    assert total(largest) <= 2**30 < total(largest + 8 * 1024)


def test_a_plan_says_whether_it_fits_and_the_largest_table():
    printed = xrex("plan", QUICKSTART, "--devices", 2, "--memory", 0.005).stdout
    assert "2 devices of 5,368,709 (5.1 MiB): does not fit" in printed
    assert "table 'users': nothing fits beside the rest" in printed
