"""The side port's server: HTTP in threads of its own, which ask the loop (docs/adr/0011)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs

from taskmesh.errors import ConfigError
from taskmesh.http.client import PROBES
from taskmesh.http.metrics import CONTENT_TYPE, QUEUE_HELP, exposition
from taskmesh.http.settings import SideSettings

REQUEST = 5.0
"""Seconds that a request may take, from its connection to its end."""
CONNECTIONS = 32
"""Connections at a time; a further one costs the oldest its place, so slow peers keep nobody out."""
LONGEST_BODY = 1 << 16
LAST_ANSWERS = 1.0
"""Seconds that answers under way have when the program ends."""
POLL = 0.25
"""Seconds between checks for connections that take too long, and for the end."""

Reply = tuple[int, str, bytes]
Ask = Callable[[str], tuple[int, object]]
"""Returns the status and the answer of a route, such as `GET /readyz`."""


def as_text(status: int, text: str) -> Reply:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


class RequestHandler(BaseHTTPRequestHandler):
    """One request. The loop answers it; nothing here touches a machine."""

    server_version = "taskmesh"
    sys_version = ""
    timeout = REQUEST
    server: _Server

    def do_GET(self) -> None:
        """Serve a request: method and path name an answer of the loop, but for `/livez`."""
        self._skip_body()
        with contextlib.suppress(OSError):  # the connection is closed
            status, kind, body = self._reply()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    do_HEAD = do_POST = do_GET  # noqa: N815  the base class's names

    def _reply(self) -> Reply:
        path, _, query = self.path.partition("?")
        if path not in PROBES.values():
            header = self.headers.get
            refusal = self.server.settings.refusal(
                header("Authorization", ""), header("Origin", ""), header("Host", "")
            )
            if refusal is not None:
                return as_text(*refusal)
        status, answer = self.server.ask(f"{self.command.replace('HEAD', 'GET')} {path}")
        match answer:
            case str():
                return as_text(status, answer)
            case bool(good), str(text):
                return as_text(200 if good else 503, text)
            case list():
                return status, CONTENT_TYPE, exposition(answer).encode()
            case {"queues": dict(queues)}:  # and those that `?queue=NAME` asks for: a scaler finds its key
                try:
                    names = parse_qs(query, max_num_fields=100).get("queue", [])
                except ValueError as error:
                    return as_text(400, str(error))
                for name in names:
                    queues.setdefault(name, dict.fromkeys(QUEUE_HELP, 0))
        status = 202 if self.command == "POST" else status
        return status, "application/json", json.dumps(answer).encode() + b"\n"

    def _skip_body(self) -> None:
        """Read the body: closing with unread bytes would reset the connection before the answer is read."""
        size = self.headers.get("Content-Length", "")
        if size.isdecimal() and int(size) <= LONGEST_BODY:
            self.rfile.read(int(size))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name
        """Log nothing: probes come every few seconds."""


class _Server(ThreadingTCPServer):
    """Connections are bounded in number and time: a slow peer holds up no probe."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, settings: SideSettings, ask: Ask) -> None:
        self.settings = settings
        self.ask = ask
        self.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        self._open: dict[Any, float] = {}
        self._none_open = threading.Event()
        super().__init__((settings.host, settings.port), RequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Pass a connection to a thread; cut the oldest when there are too many."""
        while len(self._open) >= CONNECTIONS:
            self._cut(*list(self._open)[:1])
        self._open[request] = time.monotonic() + REQUEST
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, in its thread, or here if no thread could be started."""
        self._open.pop(request, None)
        super().shutdown_request(request)
        if not self._open:
            self._none_open.set()

    def service_actions(self) -> None:
        """Cut connections that take too long, even if bytes keep coming."""
        now = time.monotonic()
        self._cut(*[request for request, until in list(self._open.items()) if now >= until])

    def _cut(self, *requests: Any) -> None:
        """Cut connections, each once: they count no longer, though their threads go on."""
        for request in requests:
            self._open.pop(request, None)
            cut(request)

    def end(self) -> None:
        """Take no more connections or requests; close when answers under way are written, or late."""
        self.shutdown()
        self._none_open.clear()
        for request in list(self._open):
            cut(request, socket.SHUT_RD)
        if self._open:
            self._none_open.wait(LAST_ANSWERS)
        self._cut(*list(self._open))
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke."""


def cut(connection: socket.socket, what: int = socket.SHUT_RDWR) -> None:
    """Shut a connection down; the thread that reads from it sees its end."""
    with contextlib.suppress(OSError):
        connection.shutdown(what)


@contextlib.contextmanager
def served(settings: SideSettings, ask: Ask) -> Iterator[str]:
    """Serve until the end of the block, which gets the address as http://HOST:PORT.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        server = _Server(settings, ask)
    except OSError as error:
        raise ConfigError(
            f"the side port cannot listen at {settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another --http"
        ) from None
    threading.Thread(target=server.serve_forever, args=(POLL,), name="taskmesh-http", daemon=True).start()
    host, port = server.server_address[:2]
    try:
        yield f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"
    finally:
        server.end()
