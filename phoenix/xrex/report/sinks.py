"""Files that grow by a line: metrics.jsonl, the journals and the dead letters."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from xrex.errors import RunError
from xrex.utils.metadata import atomic_write


class JsonLines:
    """Appends JSON objects to a file, one a line. The lines of an earlier start stay; see drop_after.

    The file is made by the first line.
    """

    def __init__(self, path: str | os.PathLike):
        self._path = path
        self._file: BinaryIO | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system, so that SIGKILL cannot lose it.

        numpy scalars become numbers; NaN and infinities, which JSON lacks, become null.
        """
        line = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if self._file is None:
            self._file = open(self._path, "ab")  # noqa: SIM115 - open for the life of the run
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def drop_after(path: str | os.PathLike, step: int) -> None:
    """Remove the lines whose "step" is above a restored step, and a last line that a kill cut short; no file: nothing.

    The rewrite is one rename. A broken line before the last is a RunError.
    """
    path = Path(path)
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for number, line in enumerate(lines, 1) if _stays(path, number, line, step)]
    if kept == lines:
        return
    atomic_write(path, b"".join(kept))


def _stays(path: Path, number: int, line: bytes, step: int) -> bool:
    if not line.endswith(b"\n"):
        return False  # Only the last line can lack its end: the write was cut short.
    try:
        return json.loads(line).get("step", 0) <= step
    except (ValueError, AttributeError, TypeError):
        raise RunError(
            f"{path}, line {number} = {line[:80].decode(errors='replace').rstrip()!r}: not an object with a step; "
            f"remove the line and start again"
        ) from None


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
