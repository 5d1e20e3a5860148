"""References to secrets. The secret itself never stands in a config."""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import core_schema

from xai_configlib.codec import is_writable
from xai_configlib.errors import ConfigError

ENV_PREFIXES = ("PHOENIX_", "KAFKA_")
DEFAULT_SECRETS_DIR = "/run/secrets"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"


@dataclass(frozen=True, kw_only=True)
class SecretRef:
    """Where a secret is: `{"env": NAME}` or `{"file": PATH}`. repr and JSON show the reference, never the secret."""

    env: str | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.file is None):
            raise ValueError("a secret is referred to by exactly one of env and file")
        if self.env is not None and not re.fullmatch(ENV_NAME, self.env):
            raise ValueError("env is the name of an environment variable")
        if self.file is not None and (not self.file or "\0" in self.file or not is_writable(self.file)):
            raise ValueError("file is a path")

    def __repr__(self) -> str:
        return f"SecretRef(env={self.env!r})" if self.env is not None else f"SecretRef(file={self.file!r})"

    @classmethod
    def from_value(cls, value: Any) -> "SecretRef | None":
        """The reference that a JSON object stands for; None if the value is no reference."""
        if not isinstance(value, Mapping) or len(value) != 1:
            return None
        ((kind, target),) = value.items()
        if kind not in ("env", "file") or not isinstance(target, str):
            return None
        try:
            return cls(**{kind: target})
        except ValueError:
            return None

    def to_value(self) -> dict[str, str]:
        """The JSON object that stands for this reference."""
        return {"env": self.env} if self.env is not None else {"file": str(self.file)}

    def resolve(self) -> str:
        """The secret, read now.

        A config may come from elsewhere, so only these are read: variables named PHOENIX_* or KAFKA_*, or listed in
        $PHOENIX_ALLOW_ENV (comma separated); regular files inside $PHOENIX_SECRETS_DIR (default /run/secrets; a
        relative path is taken from there) that are not readable by all, symbolic links resolved. One final newline of a
        file is dropped. Raises ConfigError, naming variable or path, if it may not be read, is missing or is empty.
        """
        return _from_environment(self.env) if self.env is not None else _from_file(str(self.file))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(cls)


def _from_environment(name: str) -> str:
    allowed = [item.strip() for item in os.environ.get("PHOENIX_ALLOW_ENV", "").split(",")]
    if not name.startswith(ENV_PREFIXES) and name not in allowed:
        raise ConfigError(
            f"environment variable {name}: a config may read only PHOENIX_* and KAFKA_*; "
            f"to allow this one, set PHOENIX_ALLOW_ENV={name}"
        )
    secret = os.environ.get(name)
    if not secret:
        raise ConfigError(
            f"environment variable {name} is {'empty' if secret == '' else 'not set'}: set it to the secret"
        )
    return secret


def _from_file(path: str) -> str:
    folder = Path(os.environ.get("PHOENIX_SECRETS_DIR") or DEFAULT_SECRETS_DIR).resolve()
    try:
        target = (folder / path).resolve(strict=True)
        if not target.is_relative_to(folder):
            raise ConfigError(f"secret file {path!r} lies outside {folder}: move it there or set PHOENIX_SECRETS_DIR")
        secret = _read_private(target)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "symbolic links go in a circle"
        raise ConfigError(f"secret file {path!r}: {reason}; looked in {folder}") from None
    if not secret:
        raise ConfigError(f"secret file {path!r} is empty: write the secret into it")
    return secret


def _read_private(target: Path) -> str:
    # O_NONBLOCK: a named pipe is refused below, not waited for. The checks look at what was opened, not at its name.
    descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(
                f"secret file {str(target)!r} is not a regular file: name a plain file that holds the secret"
            )
        if mode & stat.S_IROTH:
            raise ConfigError(f"secret file {str(target)!r} is readable by all: chmod o-r it")
        content = file.read()
    try:
        return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ConfigError(f"secret file {str(target)!r} is not UTF-8 text: save it as UTF-8") from None
