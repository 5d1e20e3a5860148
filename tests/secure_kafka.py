"""A second real Apache Kafka, which listens with every protocol: where it is, and who may use it."""

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs import ROOT

PORT = 19292
"""Of the listener in the clear; the others follow, as scripts/kafka.sh says."""
CA_FILE = str(ROOT / ".kafka" / str(PORT) / "ca.pem")
"""The authority that signed the broker's certificate, which is for 127.0.0.1 alone."""
USER, PASSWORD = "reader", "kept-quiet"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_LISTENERS = {"PLAINTEXT": 0, "SASL_PLAINTEXT": 2, "SASL_SSL": 3, "SSL": 4}
_SCRIPT = ROOT / "scripts" / "kafka.sh"


def started() -> Iterator[None]:
    """Starts the broker unless it runs already; then ends it, by its own pid."""
    was_up = _kafka_script("status").returncode == 0
    up = _kafka_script("up") if was_up else _kafka_script("up", "--fresh", "--secure")
    if up.returncode:
        complain = pytest.fail if os.environ.get("CI") else pytest.skip
        complain(f"no Kafka with TLS and SASL: {up.stderr.strip()}")
    yield
    if not was_up:
        _kafka_script("down")


def at(protocol: str, host: str = "127.0.0.1") -> str:
    """HOST:PORT of the listener that speaks this protocol."""
    return f"{host}:{PORT + _LISTENERS[protocol]}"


def security(protocol: str, mechanism: str | None = None, **changes) -> dict:
    """`dataset.log.security`, right for that listener but for the changes; secrets in files named password and token."""
    fields: dict = {"protocol": protocol}
    if protocol.endswith("SSL"):
        fields["ca_file"] = CA_FILE
    if mechanism == "OAUTHBEARER":
        fields |= {"sasl_mechanism": mechanism, "token": {"file": "token"}}
    elif mechanism is not None:
        fields |= {"sasl_mechanism": mechanism, "username": USER, "password": {"file": "password"}}
    return fields | changes


def token(lives_s: float = 3_600) -> str:
    """A bearer token of USER as this broker takes it: without a signature, valid from now on for so long."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": USER, "iat": now - 60, "exp": now + lives_s})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def write_secret(path: Path, secret: str) -> None:
    """A file that its owner alone may read, put there in one go, as those who rotate secrets do."""
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=0o600)
    new.write_text(secret)
    new.replace(path)


def _kafka_script(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KAFKA_PORT": str(PORT)}
    return subprocess.run([_SCRIPT, *words], env=environment, capture_output=True, text=True, timeout=240)
