"""Files of keys: read, written whole or not at all, and refused where others could read or change them."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from taskmesh.errors import ConfigError, KeysUnusable
from taskmesh.sockets import InvalidOption, raw_key

MOST_KEYS = 8
"""Keys in one public file; a rotation needs two."""
Closed = tuple[int, int]
"""The permissions that a path must not have, and those if root has put it there for us to read only."""
SECRET: Closed = (0o077, 0o037)
"""A mounted secret may be readable by its group."""
FOLDER: Closed = (0o077, 0)
PUBLIC: Closed = (0o022, 0)
VOLUME_LINK = "..data"
"""The link beside the files of a Secret that Kubernetes has mounted."""
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})


class KeysOutOfReach(KeysUnusable):
    """Keys could not be read for lack of files or memory: nothing is wrong with them."""


def unreadable(path: Path, error: OSError) -> KeysUnusable:
    kind = KeysOutOfReach if error.errno in SHORTAGES else KeysUnusable
    return kind(f"{path}: {error.strerror}")


def keys_in(file: Path) -> tuple[bytes, ...]:
    """Return the keys in a file, one a line; lines that begin with "# " are remarks.

    Raises:
        KeysUnusable: it cannot be read, or holds something else.
    """
    try:
        lines = [line.strip() for line in file.read_bytes()[: 100 * MOST_KEYS].splitlines()]
    except OSError as error:
        raise unreadable(file, error) from None
    keys = tuple(line for line in lines if line and not line.startswith(b"# "))
    if not 1 <= len(keys) <= MOST_KEYS:
        raise KeysUnusable(f"{file}: holds {len(keys)} keys where 1 to {MOST_KEYS} belong")
    try:
        for key in keys:
            raw_key(key)
    except InvalidOption as error:
        raise KeysUnusable(f"{file}: {error}") from None
    return keys


def write(file: Path, keys: Iterable[bytes], remark: str, *, mode: int) -> None:
    """Write keys to a file, atomically, and never readable by more users than `mode` allows."""
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    body = b"".join([f"# {remark}\n".encode(), *(key + b"\n" for key in keys)])
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(descriptor, "wb") as stream:
            stream.write(body)
            os.fsync(descriptor)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise KeysUnusable(f"{file}: {error.strerror}") from None


def check_secret(file: Path, missing: str) -> None:
    """Refuse a secret that others could have read.

    Args:
        file: the secret.
        missing: tells how one is made, for the error text.

    Raises:
        KeysUnusable: others may read or change it, or it does not exist.
    """
    remedy = f"`chmod 600 {file}`, and if they have, `taskmesh keys rotate`"
    _check(file, _facts(file, missing), SECRET, "read it", remedy)


def check_folder(folder: Path) -> None:
    """Refuse a directory of keys that others may list.

    Raises:
        KeysUnusable: others may list or change it, or there is none.
    """
    facts = _facts(folder, "`taskmesh keys new` makes one")
    if not stat.S_ISDIR(facts.st_mode):
        raise KeysUnusable(f"{folder}: is no directory")
    _check(folder, facts, FOLDER, "look into it", f"`chmod 700 {folder}`")


def check_unchangeable(path: Path) -> None:
    """Refuse a public file, or a directory of them, that others may change: it says which peers are trusted.

    Raises:
        KeysUnusable: others may change it.
    """
    _check(path, _facts(path, "copy it there"), PUBLIC, "change it", f"`chmod go-w {path}`")


def _facts(path: Path, missing: str) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        raise KeysUnusable(f"{path}: not there; {missing}") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _check(path: Path, facts: os.stat_result, closed: Closed, others: str, remedy: str) -> None:
    if _is_open(path, facts, closed):
        mode = stat.S_IMODE(facts.st_mode)
        raise KeysUnusable(f"{path}: others may {others} (mode {mode:04o}): {remedy}")
    if facts.st_uid not in (0, os.geteuid()):
        raise KeysUnusable(f"{path}: belongs to somebody else (user {facts.st_uid}); make it your own")


def _is_open(path: Path, facts: os.stat_result, closed: Closed) -> bool:
    own, mounted = closed
    if facts.st_uid != 0 or os.access(path, os.W_OK):
        return bool(facts.st_mode & own)
    if path.with_name(VOLUME_LINK).is_symlink():
        # Kubernetes mounts a Secret with mode 0644 where the pod does not say otherwise, and Spark's settings
        # for Secrets cannot say it. The others who may read it then are this pod's own containers.
        mounted &= ~0o004
    return bool(facts.st_mode & mounted)


def read_secret(file: Path, what: str) -> str:
    """Read a secret that only its owner can read, or that root has mounted here; blanks around it are cut.

    Args:
        file: the file.
        what: a name for it in error texts, with its article.

    Raises:
        ConfigError: it cannot be read, or others may read it.
    """
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            text = opened.read(4096).decode("ascii").strip()
    except OSError as error:
        raise ConfigError(f"{what} {file} cannot be read: {error}") from None
    except UnicodeDecodeError:  # its text would show the secret
        raise ConfigError(f"{what} {file} cannot be read: it holds more than ASCII") from None
    if _is_open(file, status, SECRET):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"{what} {file} has mode {mode:04o}, so others may read it: chmod 600 {file}")
    return text
