"""A probe of an address where no hub has answered: it finds out what listens there instead."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from taskmesh.errors import ConfigError
from taskmesh.net.endpoints import IPC, tcp_parts

_CONNECT, _GREETING = 1.0, 0.3
_PROBE = 1.5
"""Seconds for the whole probe: looking up a name may take any time where name servers are away."""
_SILENT = (
    "answers no connection: a firewall drops them, the machine is away, or the hub is at its limit of open "
    "files (it says `files.short` then)"
)
_SIGNATURE = 10
"""Bytes that each end of a ZeroMQ connection says at once: 0xFF, eight of any kind, 0x7F."""


def describe_listener(address: str) -> str:
    """Return a sentence about a listener that is certainly no hub; "" if there is none, or if in doubt."""
    found: list[str] = []

    def probe() -> None:
        with contextlib.suppress(OSError, ConfigError):
            try:
                with _connected(address) as link:
                    found.append(_described(_greeting(link)))
            except TimeoutError:
                found.append(_SILENT)

    thread = threading.Thread(target=probe, name="taskmesh-probe", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had
        return ""
    thread.join(_PROBE)
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
    """Return the first bytes that the other end sends."""
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


def _described(said: bytes) -> str:
    if len(said) >= _SIGNATURE and said[0] == 0xFF and said[_SIGNATURE - 1] == 0x7F:
        return "is a ZeroMQ socket, but no hub's gateway (the first of its three ports), or overloaded"
    if said:
        return f"is another program's: it says {said[:40]!r}"
    return "is another program's, which speaks no ZeroMQ, or a hub that stands still"
