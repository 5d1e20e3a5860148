"""One process of the tests in test_broadcast_processes.py and test_run_multihost.py: `python -m broadcast_worker CASE`."""

import hashlib
import os
import signal
import sys
import time

import numpy as np

from xai_configlib import Config, ConfigError, configclass, field
from xrex.errors import CheckpointError, RunError, exit_code
from xrex.utils import utils


@configclass(policy="may_change")
class Sample(Config):
    """A config to send."""

    rate: float = field(default=0.1)
    """A float."""

    names: tuple[str, ...] = field(default=())
    """Some text."""


BIG = np.random.default_rng(0).integers(0, 256, 10_000_000, dtype=np.uint8).tobytes()
CONFIG = Sample(rate=3e-4, names=("αβγ", 'a "quoted" one', ""))
LARGE = Sample(names=tuple(f"{i:0100}" for i in range(20_000)))
TREE = {
    "int64": np.array([2**53 + 1, -(2**63), 2**63 - 1]),
    "uint64": np.array([[2**64 - 1, 2**53 + 1]], np.uint64),
    "float64": np.array(0.1 + 2**-50),
    "more": [np.zeros((0, 3), np.float16), (np.array([True, False]), 2**70, 0.1, "text", None)],
}


def values() -> None:
    """Everything that may be sent arrives as it was."""
    first = utils.process_index() == 0

    def send(x):
        return utils.broadcast_one_to_all(x if first else None)

    for data in (b"", b"\0", BIG):
        assert send(data) == data
    received = send(CONFIG)
    assert received == CONFIG
    assert received.to_json() == CONFIG.to_json()
    assert_same_tree(send(TREE), TREE)
    import jax.numpy as jnp

    assert_same_tree(send(jnp.arange(3, dtype=jnp.bfloat16)), np.arange(3, dtype=jnp.bfloat16))
    assert utils.from_process_zero(lambda: f"made by {utils.process_index()}") == "made by 0"
    print("values ok")


def large_config() -> None:
    """A config of 2 MB travels, and all agree on its canonical text."""
    config = LARGE if utils.process_index() == 0 else None
    began = time.monotonic()
    received = utils.broadcast_one_to_all(config)
    text = received.to_json()
    utils.agree("config.json", text)
    took_s = time.monotonic() - began
    assert received == LARGE
    print(f"{len(text)} bytes, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}, after {took_s:.2f} s")


def assert_same_tree(a, b) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        a, b = list(a.values()), list(b.values())
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same_tree(one, other)
    else:
        assert a == b


def gather() -> None:
    """Bytes of other lengths on every process: none, one, ten, and more than one chunk."""
    data = [b"", b"\xff", bytes(10), BIG]
    assert utils.gather_bytes(data[utils.process_index()]) == data
    assert utils.gather_bytes(b"") == [b""] * 4
    print("gather ok")


def agree() -> None:
    """Same bytes pass; process 2 of 4 holds others."""
    utils.agree("code version", "abc")
    utils.agree("config", b"other" if utils.process_index() == 2 else b"same")


def config_error() -> None:
    def fail():
        raise ConfigError("trainer.max_steps = -1: at least 1")

    utils.from_process_zero(fail)


def run_error() -> None:
    error = CheckpointError("RUN/checkpoints: no complete step")
    utils.broadcast_one_to_all(error if utils.process_index() == 0 else None)


def unreadable() -> None:
    """Process 1 does not know the config's class as process 0 does."""
    if utils.process_index() == 1:

        def refuse(*_, **__):
            raise ConfigError("process 1 has other code")

        Config.from_json = refuse
    utils.broadcast_one_to_all(CONFIG if utils.process_index() == 0 else None)


def unexpected() -> None:
    utils.from_process_zero(lambda: {}["missing"])


def unsendable() -> None:
    utils.broadcast_one_to_all({"a": [object()]} if utils.process_index() == 0 else None)


def together() -> None:
    utils.raise_together(None)
    utils.raise_together(RunError("process 1 ran out of disk") if utils.process_index() == 1 else None)


def long_answer() -> None:
    """Process 0 answers after more than the 30 s that Gloo gives the first collective."""
    assert utils.from_process_zero(lambda: time.sleep(35) or b"late") == b"late"
    print("late ok")


def wait_for_signal() -> None:
    """The handler was there before JAX; SIGTERM must still reach it."""
    print("ready", flush=True)
    time.sleep(60)


def main(case: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: (print("got SIGTERM", flush=True), os._exit(143)))
    try:
        utils.start_distributed()
        globals()[case]()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = exit_code(error) if isinstance(error, RunError | ConfigError) else 70
        utils.exit_now(code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
