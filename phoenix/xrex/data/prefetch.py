"""Batches made ahead of the step by one background thread. Read-ahead moves no position, only a trained batch does."""

import queue
import threading
import time
from collections.abc import Callable

from xrex.data.batching import POLL_S, Batcher, StopReading
from xrex.data.config import DatasetConfig
from xrex.data.featurize import example_batch
from xrex.data.log.base import Log
from xrex.data.log.open import open_log
from xrex.errors import LogStalled, RunError
from xrex.schema.batch import Delivery
from xrex.schema.positions import PartitionPosition

_CLOSE_TIMEOUT_S = 2.0
_SILENCE_S = 60.0
"""Beyond dataset.stall_timeout_s: how long the thread may give no sign of life, in a decoder or in the log's client."""


class Stream:
    """The batches of this process's partitions, in order. One thread, the training loop's, calls `next` and `close`."""

    def __init__(
        self,
        config: DatasetConfig,
        *,
        positions: dict[int, PartitionPosition],
        partitions: list[int],
        rows: int,
        bad_before: int = 0,
        log: Log | None = None,
    ):
        """Starts to read at once. The log (opened by config.log unless given) lives and is closed in the thread.

        positions    next row of every partition that the run reads; of them `partitions` are this process's
        rows         rows of a batch of this process (B)
        bad_before   bad records that the run has passed over so far
        """
        self._config, self._rows, self._given_log, self._bad_before = config, rows, log, bad_before
        self._positions = {p: positions[p] for p in partitions}
        self._known_partitions = len(positions)
        self._log: Log | None = None
        self._more = True
        self._ends: dict[int, int] = {}
        self._queue: queue.Queue[Delivery | BaseException] = queue.Queue(config.prefetch_batches)
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._last_sign = time.monotonic()
        self.wait_seconds = 0.0
        """Time that all calls of `next` have waited."""
        self._thread = threading.Thread(target=self._run, name="xrex-stream", daemon=True)
        self._thread.start()

    def next(self, interrupted: Callable[[], bool] = lambda: False) -> Delivery:
        """The next delivery. Empty (weight 0): at the live edge about every linger_ms, when `interrupted()` while
        waiting, and for ever after the delivery with more = False.

        An error of the thread, whatever it is, is raised here in the place of the batch that it prevented.
        """
        began = time.monotonic()
        try:
            return self._next(interrupted)
        finally:
            self.wait_seconds += time.monotonic() - began

    def _next(self, interrupted: Callable[[], bool]) -> Delivery:
        while True:
            if self._error is not None:
                raise self._error
            if not self._more:
                return self._empty()
            is_alive = self._thread.is_alive()  # asked first: what a thread leaves behind is then in the queue
            try:
                item = self._queue.get(timeout=POLL_S)
            except queue.Empty:
                if interrupted():
                    return self._empty()
                self._error = self._silence(is_alive)
                continue
            if isinstance(item, BaseException):
                self._error = item
                continue
            self._positions, self._more = item.next_positions, item.more
            return item

    def lag(self) -> dict[int, int]:
        """Kafka partition -> records from the last delivery's position to the end that the log last told."""
        return {p: max(0, self._ends.get(p, q.offset) - q.offset) for p, q in self._positions.items()}

    @property
    def outages(self) -> int:
        """How often a broker that is needed was away."""
        return 0 if self._log is None else self._log.outages

    def new_partitions(self) -> int | None:
        """How many partitions the topic has, once, if that is more than the run began with."""
        found = None if self._log is None else self._log.num_partitions()
        if found is None or found <= self._known_partitions:
            return None
        self._known_partitions = found
        return found

    def close(self) -> None:
        """Ends the thread and closes the log; gives up on a thread that does not end within 2 s (it is a daemon)."""
        self._stop.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _empty(self) -> Delivery:
        batch = example_batch(self._config, self._rows)
        return Delivery(batch=batch, rows=0, next_positions=self._positions, trained=(), more=self._more)

    def _silence(self, is_alive: bool) -> BaseException | None:
        if not is_alive:
            return RunError("the reader thread ended without a word: this is a defect, please report it")
        silent_s = time.monotonic() - self._last_sign
        if silent_s > self._config.stall_timeout_s + _SILENCE_S:
            return LogStalled(
                f"topic '{self._config.topic_name}': the reader has hung for {silent_s:.0f} s in one call"
            )
        return None

    def _run(self) -> None:
        try:
            self._read()
        except StopReading:
            pass
        except BaseException as error:  # also MemoryError and whatever a decoder raises: the training loop ends with it
            self._put(error)

    def _read(self) -> None:
        log = self._given_log
        if log is None and self._positions:
            log = open_log(self._config.log, self._config.topic_name)
        self._log = log
        try:
            batcher = Batcher(
                self._config, log, self._positions, self._rows, bad_before=self._bad_before, check_stop=self._check_stop
            )
            more = True
            while more:
                delivery = batcher.next()
                self._ends = batcher.ends
                self._put(delivery)
                more = delivery.more
        finally:
            if log is not None:
                log.close()

    def _check_stop(self) -> None:
        self._last_sign = time.monotonic()
        if self._stop.is_set():
            raise StopReading

    def _put(self, item: Delivery | BaseException) -> None:
        while not self._stop.is_set():
            self._last_sign = time.monotonic()
            try:
                return self._queue.put(item, timeout=POLL_S)
            except queue.Full:
                continue
