"""One request to a side port, for `taskmesh health` and `taskmesh drain --http`.

It loads nothing but a socket: a probe of Kubernetes takes 0.04 s of CPU, and 0.3 s with http.client, the
settings and the command line.
"""

from __future__ import annotations

import socket

from taskmesh.errors import TaskMeshError

LONGEST = 1 << 20
"""Bytes of an answer."""
PROBES = {"live": "/livez", "ready": "/readyz", "startup": "/startupz"}
"""The paths of the probes of a side port, by the word of `taskmesh health`."""
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  the same machine, where a program listens on every interface


class SidePortUnreachable(TaskMeshError):
    """No side port answers at this address."""


class SideClient:
    """Asks one side port.

    Args:
        host: its host; 0.0.0.0 and :: stand for loopback.
        port: its port.
        token: its token; empty for none.
        timeout: seconds that connecting, and each wait for a part of the answer, may take.
    """

    __slots__ = ("_timeout", "_token", "host", "port")

    def __init__(self, host: str, port: int, token: str = "", timeout: float = 3.0) -> None:
        self.host = ANY.get(host, host)
        self.port = port
        self._token = token
        self._timeout = timeout

    def ask(self, method: str, path: str) -> tuple[int, str]:
        """Return status and text of the answer.

        Raises:
            SidePortUnreachable: there was no answer within the time-out.
        """
        try:
            return _parsed(self._exchange(method, path))
        except (OSError, OverflowError, ValueError) as error:
            raise SidePortUnreachable(
                f"no side port answers at {self.host}:{self.port}: {error}; "
                "is the program started with --http?"
            ) from None

    def _exchange(self, method: str, path: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {path} HTTP/1.0",
            f"Host: {host}:{self.port}",
            "Connection: close",
            "Content-Length: 0",
        ]
        if self._token:
            lines.append(f"Authorization: Bearer {self._token}")
        answer = b""
        with socket.create_connection((self.host, self.port), self._timeout) as link:
            link.sendall("\r\n".join([*lines, "", ""]).encode())
            while len(answer) < LONGEST and (part := link.recv(1 << 16)):
                answer += part
        return answer.decode(errors="replace")


def _parsed(answer: str) -> tuple[int, str]:
    head, end, text = answer.partition("\r\n\r\n")
    words = head.split(" ", 2)
    if not end or not words[0].startswith("HTTP/1.") or len(words) < 2:
        raise ValueError("the answer is not HTTP")
    return int(words[1]), text.strip()
