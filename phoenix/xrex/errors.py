"""Every error that Phoenix raises on purpose, and the exit code each becomes.

    PhoenixError                 base; str(error) is what the operator reads: one line a problem
    ├── ConfigError      exit 2  the command line or a config is wrong; nothing was connected to, created or changed
    └── RunError         exit 1  the run failed: what, where, what to do
        ├── LogError             the stream could not be read
        │   ├── LogUnreachable   no broker answered (address, name resolution, TLS, authentication: `reason` tells which)
        │   ├── TopicMissing     the topic is not there
        │   ├── OffsetLost       a saved position is outside the log
        │   └── LogStalled       a partition with a backlog delivered nothing within dataset.stall_timeout_s
        ├── BadRecord            a message or a row that cannot be trained: topic, partition, offset, row, reason
        └── CheckpointError      a step could not be written, found or read
            └── StepDamaged      a step's bytes are not those that were saved

`ConfigError` comes from `xai_configlib`, the floor below, so that the library stands alone.
An interrupted run is no error: exit 130 (SIGINT) or 143 (SIGTERM) after a complete checkpoint.
"""

from xai_configlib import ConfigError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2

__all__ = [
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_USAGE",
    "BadRecord",
    "CheckpointError",
    "ConfigError",
    "LogError",
    "LogStalled",
    "LogUnreachable",
    "OffsetLost",
    "PhoenixError",
    "RunError",
    "StepDamaged",
    "TopicMissing",
    "exit_code",
    "printable",
]


class PhoenixError(Exception):
    """Base of the errors below; catch it together with ConfigError to catch everything that Phoenix raises on purpose."""


class RunError(PhoenixError):
    """The run failed; the message says what, where and what to do."""


class LogError(RunError):
    """The stream could not be read."""


class LogUnreachable(LogError):
    """No broker answered within the limits."""


class TopicMissing(LogError):
    """The topic does not exist (or this user may not see it)."""


class OffsetLost(LogError):
    """A saved position lies below the log's start or beyond its end."""


class LogStalled(LogError):
    """A partition that has a backlog delivered nothing within `dataset.stall_timeout_s`."""


class BadRecord(RunError):
    """A message or row that cannot be trained."""

    def __init__(self, reason: str, row: int | None = None):
        super().__init__(reason)
        self.row = row
        """Row of the message, where one row is to blame."""


class CheckpointError(RunError):
    """A checkpoint step could not be written, found or read."""


class StepDamaged(CheckpointError):
    """What a step holds is not what was saved: its files cannot be read, or a checksum differs."""


def printable(text: str, limit: int = 1_000) -> str:
    """The text on one line, cut, with whatever moves a terminal's cursor or colours it escaped: it may quote a message."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:limit])
    return line if len(text) <= limit else f"{line}…"


def exit_code(error: BaseException) -> int:
    """The process's exit code for an error that ends it."""
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
