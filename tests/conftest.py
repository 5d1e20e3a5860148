"""Fixtures shared by all tests."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("PHOENIX_MACHINE_SETTINGS", "off")  # what runs print is then the same on every machine

import jax  # noqa: E402, after its environment
import pytest  # noqa: E402

# Not by XLA_FLAGS: the runs that tests start would inherit them, and see four devices where a user sees one.
jax.config.update("jax_num_cpu_devices", 4)

KAFKA_SCRIPT = ROOT / "scripts" / "kafka.sh"
KAFKA_TEST_PORT = "19092"


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """HOST:PORT of a real Apache Kafka: $PHOENIX_TEST_KAFKA, else one that scripts/kafka.sh starts for these tests."""
    if given := os.environ.get("PHOENIX_TEST_KAFKA"):
        yield given
        return
    was_up = _kafka_script("status").returncode == 0
    up = _kafka_script("up") if was_up else _kafka_script("up", "--fresh", "--secure")
    if up.returncode:
        complain = pytest.fail if os.environ.get("CI") else pytest.skip
        complain(f"no Kafka: {up.stderr.strip()} (or set PHOENIX_TEST_KAFKA=HOST:PORT)")
    yield up.stdout.split()[-1]
    if not was_up:
        _kafka_script("down")


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


def _kafka_script(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KAFKA_PORT": KAFKA_TEST_PORT}
    return subprocess.run([KAFKA_SCRIPT, *words], env=environment, capture_output=True, text=True, timeout=240)
