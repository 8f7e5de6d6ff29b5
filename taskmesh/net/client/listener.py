"""What listens at an address where no hub has answered, as far as one look can tell."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from taskmesh.errors import ConfigError
from taskmesh.net.endpoints import IPC, tcp_parts

_CONNECT, _GREETING = 1.0, 0.3
_LOOK = 1.5
"""Seconds for all of it: looking up a name may take any time, where name servers are away."""
_SILENT = (
    "answers no connection: a firewall drops them, the machine is away, or the hub is at its limit of open "
    "files (it says `files.short` then)"
)
_SIGNATURE = 10
"""Bytes that each end of a ZeroMQ connection says at once: 0xFF, eight of any kind, 0x7F."""


def told_of(address: str) -> str:
    """What listens there if it is certainly no hub, as a sentence; "" where nothing does, or nobody knows."""
    found: list[str] = []

    def look() -> None:
        with contextlib.suppress(OSError, ConfigError):
            try:
                with _connected(address) as link:
                    found.append(_told(_greeting(link)))
            except TimeoutError:
                found.append(_SILENT)

    thread = threading.Thread(target=look, name="taskmesh-look", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had
        return ""
    thread.join(_LOOK)
    return f"{address} {found[0]}" if found else ""


def _connected(address: str) -> socket.socket:
    if address.startswith(IPC):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(_CONNECT)
        try:
            link.connect(address.removeprefix(IPC))
        except OSError:
            link.close()
            raise
        return link
    host, port = tcp_parts(address)
    return socket.create_connection((host.strip("[]"), port), _CONNECT)


def _greeting(link: socket.socket) -> bytes:
    """What the other end says first."""
    said = b""
    deadline = time.monotonic() + _GREETING
    with contextlib.suppress(OSError):
        while len(said) < _SIGNATURE and (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            part = link.recv(64)
            if not part:
                break
            said += part
    return said


def _told(said: bytes) -> str:
    if len(said) >= _SIGNATURE and said[0] == 0xFF and said[_SIGNATURE - 1] == 0x7F:
        return "is a ZeroMQ socket, but no hub's gateway (the first of its three ports), or overloaded"
    if said:
        return f"is another program's: it says {said[:40]!r}"
    return "is another program's, which speaks no ZeroMQ, or a hub that stands still"
