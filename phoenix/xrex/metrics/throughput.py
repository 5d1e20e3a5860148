"""How fast a run is and how much of its time it waits for data."""

from typing import NamedTuple


class Rates(NamedTuple):
    """What one interval showed."""

    examples_per_s: float
    input_wait_share: float
    """Share of the interval's wall time spent waiting for the next batch, 0 to 1."""


class Throughput:
    """Counts examples and waits between two readings of a monotonic clock, in seconds."""

    def __init__(self, now_s: float):
        self._since_s = now_s
        self._examples = 0
        self._waited_s = 0.0

    def add(self, examples: int, waited_s: float) -> None:
        """Count a batch and how long the loop waited for it."""
        self._examples += examples
        self._waited_s += waited_s

    def take(self, now_s: float) -> Rates:
        """The rates since the last call (or the beginning), zero if no time passed; the next interval starts now."""
        wall_s = now_s - self._since_s
        rates = Rates(self._examples / wall_s, min(1.0, self._waited_s / wall_s)) if wall_s > 0 else Rates(0.0, 0.0)
        self._since_s, self._examples, self._waited_s = now_s, 0, 0.0
        return rates
