"""The quick way of `taskmesh health VERB --http HOST:PORT`, as Kubernetes' probes have it.

It loads nothing but a socket: 0.04 s of CPU, where the command takes 0.3. Every other form of it, and every
answer that is not plain, is left to the command.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

PATHS = {"live": "/livez", "ready": "/readyz", "startup": "/startupz"}
TIMEOUT = 3.0
"""Seconds; as the command's own."""
LONGEST = 1 << 16


def probed(line: Sequence[str]) -> int | None:
    """The exit code of a probe; None when this is no plain one, or got no plain answer."""
    match line:
        case ["health", verb, "--http", address] if verb in PATHS:
            host, _, port = address.rpartition(":")
        case _:
            return None
    if not host.replace(".", "").isdigit() or not port.isdigit():
        return None
    answer = asked(host, int(port), PATHS[verb])
    head, end, text = answer.partition("\r\n\r\n")
    status = head.split(" ")[1:2]
    if not end or not head.startswith("HTTP/1.") or status not in (["200"], ["503"]):
        return None
    sys.stdout.write(f"{text.strip()}\n")
    return 0 if status == ["200"] else 1


def asked(host: str, port: int, path: str) -> str:
    """The answer to one request as it came; empty when there was none."""
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    found = b""
    try:
        with socket.create_connection((host, port), TIMEOUT) as link:
            link.sendall(request.encode())
            while len(found) < LONGEST and (part := link.recv(LONGEST)):
                found += part
    except (OSError, OverflowError):
        return ""
    return found.decode(errors="replace")
