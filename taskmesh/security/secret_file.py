"""A secret in a file of its own, so that it stands in no command line and no environment."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from taskmesh.errors import ConfigError


def read_secret(file: Path, what: str) -> str:
    """What a file holds that only its owner can read, or that root has mounted here; without blanks around.

    Args:
        what: the file in words, with its article.

    Raises:
        ConfigError: it cannot be read, or others may read it.
    """
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            text = opened.read(4096).decode("ascii").strip()
    except OSError as error:
        raise ConfigError(f"{what} {file} cannot be read: {error}") from None
    except UnicodeDecodeError:  # whose text would show what the file holds
        raise ConfigError(f"{what} {file} cannot be read: it holds more than ASCII") from None
    if _is_loose(status, file):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"{what} {file} has mode {mode:04o}, so others may read it: chmod 600 {file}")
    return text


def _is_loose(status: os.stat_result, file: Path) -> bool:
    """A Secret that Kubernetes mounts is root's and group-readable; this process cannot write it."""
    mounted = status.st_uid == 0 and not os.access(file, os.W_OK)
    return bool(status.st_mode & (0o037 if mounted else 0o077))
