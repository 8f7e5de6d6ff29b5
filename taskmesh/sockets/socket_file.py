"""The file of an ipc endpoint: libzmq makes one when it binds, and leaves it when it closes."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Self

IPC = "ipc://"

_KINDS = ((stat.S_ISREG, "a file"), (stat.S_ISDIR, "a directory"), (stat.S_ISLNK, "a symbolic link"))


class SocketFile:
    """A file that one of our sockets is bound to.

    It is known by its number on its device. That stays the file's own for as long as the socket listens, even
    when another process has put a file of its own in its place: only our own is ever removed.
    """

    __slots__ = ("_number", "_path")

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._number = self._found()

    @classmethod
    def of(cls, endpoint: str) -> Self | None:
        """The file of an endpoint just bound; None where it has none, or libzmq removes it (a wildcard)."""
        path = endpoint.removeprefix(IPC)
        return None if path in (endpoint, "*") or path.startswith("@") else cls(path)

    def remove(self) -> None:
        """Removes it, if it is still there. To be called while the socket listens."""
        if self._number is not None and self._found() == self._number:
            with contextlib.suppress(OSError):  # a folder that is no longer ours to write: the file stays
                os.unlink(self._path)

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def obstacle(endpoint: str) -> str:
    """Return what is in the way of an endpoint's file and is no socket, and what to do; "" for nothing.

    libzmq removes whatever it finds there, without a word.
    """
    path = endpoint.removeprefix(IPC)
    if path in (endpoint, "*") or path.startswith("@"):
        return ""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{error.strerror}; choose another path"
    except ValueError:  # a character that no path has; libzmq would end the path there
        return "no file can have that name; choose another path"
    if stat.S_ISSOCK(mode):
        return ""
    kind = next((word for test, word in _KINDS if test(mode)), "something else")
    return f"{path} is {kind} and no socket; choose another path"
