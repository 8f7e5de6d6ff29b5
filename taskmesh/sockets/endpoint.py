"""The endpoints of sockets: the file of an ipc one, the port and IPv6 of a tcp one."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from threading import Thread
from typing import Self

import zmq

from taskmesh.sockets.errors import EndpointError

IPC = "ipc://"
TCP = "tcp://"
HIGHEST_PORT = 65_535
LOOKUP = 0.5
"""Seconds that a caller waits for a name to be looked up."""

_only_ipv6: dict[str, bool] = {}
"""The names that were looked up."""
_KINDS = ((stat.S_ISREG, "a file"), (stat.S_ISDIR, "a directory"), (stat.S_ISLNK, "a symbolic link"))


class SocketFile:
    """A file that one of our sockets is bound to: libzmq makes it, and leaves it when it closes.

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
        """Remove it, if it is still there. To be called while the socket listens."""
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


@contextlib.contextmanager
def for_its_owner(endpoint: str) -> Iterator[None]:
    """Let the file that an endpoint is bound to be its owner's alone: who may write to it may connect."""
    if not endpoint.startswith(IPC):
        yield
        return
    former = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(former)


def check_port(endpoint: str) -> None:
    """Refuse a tcp port that does not exist; libzmq takes 65536 and more for another port without a word.

    Raises:
        EndpointError: the port is above 65535.
    """
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith(TCP) and port.isdecimal() and int(port) > HIGHEST_PORT:
        raise EndpointError(f"there is no tcp port {port}; the highest is {HIGHEST_PORT}", zmq.EINVAL)


def needs_ipv6(endpoint: str) -> bool:
    """Return True if an endpoint can be reached over IPv6 alone: an address in brackets, or such a name.

    libzmq speaks IPv6 only where it is told to, and then prefers it to the IPv4 address of a name. A name is
    looked up once, and again as long as it is unknown. The look-up has a thread of its own, and the caller,
    who may have a loop to run, waits for LOOKUP seconds at most: a later answer counts for the next socket.
    """
    if not endpoint.startswith(TCP):
        return False
    host = endpoint.removeprefix(TCP).rpartition(":")[0]
    if host.startswith("["):
        return True
    if not any(map(str.isalpha, host)):
        return False  # an IPv4 address, or the wildcard
    if host not in _only_ipv6:
        look_up = Thread(target=_look_up, args=(host,), name="taskmesh-look-up", daemon=True)
        look_up.start()
        look_up.join(LOOKUP)
    return _only_ipv6.get(host, False)


def _look_up(host: str) -> None:
    """Look a name up; an interface's name, to which libzmq can bind, is none."""
    with contextlib.suppress(OSError):  # nobody knows it (now)
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
        _only_ipv6[host] = all(family == socket.AF_INET6 for family, *_ in found)
