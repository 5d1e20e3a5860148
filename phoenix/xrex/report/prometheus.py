"""Metrics for Prometheus, served by the trainer where `trainer.prometheus_address` asks for it. Needs prometheus-client."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from xrex.errors import ConfigError, RunError

GAUGES = {
    "step": ("phoenix_step", "Optimizer steps of the lineage."),
    "examples": ("phoenix_examples", "Examples that the run has trained."),
    "loss": ("phoenix_loss", "Mean loss over the newest interval."),
    "examples_per_s": ("phoenix_examples_per_second", "Over the newest interval."),
    "input_wait_share": ("phoenix_input_wait_ratio", "Share of the newest interval spent waiting for data, 0 to 1."),
    "freshness_s": ("phoenix_freshness_seconds", "Now minus the event time of the newest trained example."),
    "outages": ("phoenix_broker_outages", "How often a broker was away since the start."),
}
BY_PARTITION = {
    "lag": ("phoenix_lag_records", "Records behind the known end."),
    "offset": ("phoenix_next_offset", "Offset of the next record to train."),
}


def check_prometheus(address: str | None) -> None:
    """Raises ConfigError where metrics shall be served and prometheus-client is not installed."""
    if address is not None and find_spec("prometheus_client") is None:
        raise ConfigError(
            f"trainer.prometheus_address = {address!r}: needs prometheus-client: .venv/bin/pip install prometheus-client"
        )


class Prometheus:
    """Serves the numbers of the newest line over HTTP, from a thread of its own."""

    def __init__(self, address: str):
        """address  PORT (of loopback) or HOST:PORT. Raises RunError if it is taken."""
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry = CollectorRegistry()
        self._gauges = {name: Gauge(*described, registry=registry) for name, described in GAUGES.items()}
        self._by_partition = {
            name: Gauge(*described, ["partition"], registry=registry) for name, described in BY_PARTITION.items()
        }
        self._skipped = Gauge("phoenix_skipped_records", "Records passed over.", ["reason"], registry=registry)
        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(int(port), host or "127.0.0.1", registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RunError(
                f"trainer.prometheus_address = {address!r}: cannot listen: {reason}; choose another"
            ) from None

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def update(self, record: Mapping[str, Any], offsets: Mapping[int, int]) -> None:
        """Take what is there of a line of metrics.jsonl, and the next offsets by partition."""
        for name, gauge in self._gauges.items():
            if record.get(name) is not None:
                gauge.set(record[name])
        for partition, lag in record.get("lag", {}).items():
            self._by_partition["lag"].labels(partition).set(lag)
        for partition, offset in offsets.items():
            self._by_partition["offset"].labels(str(partition)).set(offset)
        for reason, count in record.get("skipped", {}).items():
            self._skipped.labels(reason).set(count)

    def close(self) -> None:
        """Let go of the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
