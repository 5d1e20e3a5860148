"""What JAX compiles while a test runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest


@contextmanager
def compilations_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """JAX says in `caplog` what it compiles."""
    jax.config.update("jax_log_compiles", True)
    try:
        with caplog.at_level(logging.WARNING, "jax"):
            yield
    finally:
        jax.config.update("jax_log_compiles", False)


def compilations(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Its lines since the log was cleared."""
    return [line for line in caplog.messages if line.startswith(("Compiling", "Finished XLA compilation"))]
