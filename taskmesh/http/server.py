"""The side port: HTTP for probes and metrics, in threads of its own (docs/adr/0011)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import parse_qs

from taskmesh.errors import ConfigError
from taskmesh.http.hub_metrics import QUEUE_HELP
from taskmesh.http.metrics import CONTENT_TYPE, Family, exposition
from taskmesh.http.requests import LoopRequests, NoAnswer, NothingHere
from taskmesh.http.settings import SideSettings
from taskmesh.system.loopback import is_loopback

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
JSON, TEXT = "application/json", "text/plain; charset=utf-8"


def as_text(status: int, text: str) -> Reply:
    return status, TEXT, f"{text}\n".encode()


def as_json(status: int, value: object) -> Reply:
    return status, JSON, json.dumps(value).encode() + b"\n"


class RequestHandler(BaseHTTPRequestHandler):
    """One request. The loop answers it; nothing here touches a machine."""

    server_version = "taskmesh"
    sys_version = ""
    timeout = REQUEST
    server: _Server

    def do_GET(self) -> None:
        """Serve probes, metrics, queues, the state of a drain."""
        self._serve(
            {
                "/livez": self._live,
                "/readyz": lambda: self._probe("ready"),
                "/startupz": lambda: self._probe("startup"),
                "/metrics": self._metrics,
                "/v1/queues": self._queues,
                "/drain": lambda: as_json(200, self._ask("drain_state")),
            }
        )

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        """Begin a drain; asking again changes nothing."""
        self._skip_body()
        self._serve({"/drain": lambda: as_json(202, self._ask("drain"))})

    # --- answers --------------------------------------------------------------------------------------------

    def _live(self) -> Reply:
        requests = self.server.requests
        if requests.alive:
            return as_text(200, "live")
        return as_text(503, f"the loop has not turned for {requests.silence:.1f} s")

    def _probe(self, what: str) -> Reply:
        good, text = cast("tuple[bool, str]", self._ask(what))
        return as_text(200 if good else 503, text)

    def _metrics(self) -> Reply:
        families = cast("list[Family]", self._ask("metrics"))
        return 200, CONTENT_TYPE, exposition(families).encode()

    def _queues(self) -> Reply:
        """Return all queues, and those that `?queue=NAME` asks for, so that a scaler finds its key."""
        found = cast("dict[str, dict[str, int]]", self._ask("queues"))
        for name in parse_qs(self.path.partition("?")[2], max_num_fields=100).get("queue", []):
            found.setdefault(name, dict.fromkeys(QUEUE_HELP, 0))
        return as_json(200, {"queues": found})

    def _ask(self, what: str) -> object:
        return self.server.requests.ask(what)

    # --- request and reply ----------------------------------------------------------------------------------

    def _serve(self, table: dict[str, Callable[[], Reply]]) -> None:
        path = self.path.partition("?")[0]
        # An OSError: the connection is closed.
        with self.server.answering, contextlib.suppress(OSError):
            status, kind, body = self._reply(path, table.get(path))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def _reply(self, path: str, answer: Callable[[], Reply] | None) -> Reply:
        refusal = self._refusal(path)
        if refusal is not None:
            return refusal
        if answer is None:
            return as_text(404, f"nothing at {self.command} {path}")
        try:
            return answer()
        except NothingHere as error:
            return as_text(404, str(error))
        except NoAnswer as error:
            return as_text(503, str(error))
        except ValueError as error:
            return as_text(400, str(error))

    def _refusal(self, path: str) -> Reply | None:
        """Return the refusal of a browser where no token is set, or of a request without the token."""
        if path in ("/livez", "/readyz", "/startupz"):
            return None
        settings = self.server.settings
        if settings.token_file is not None:
            if settings.admits(self.headers.get("Authorization", "")):
                return None
            return as_text(401, "give the token: Authorization: Bearer ...")
        # A page in this machine's browser could post here, or read by a name that it rebinds to loopback.
        host = self.headers.get("Host", "")
        if self.headers.get("Origin") or (host and not is_loopback(_host_of(host))):
            return as_text(
                403, "without a token only programs of this machine are served, by its loopback name"
            )
        return None

    def _skip_body(self) -> None:
        """Read the body: closing with unread bytes would reset the connection before the answer is read."""
        size = self.headers.get("Content-Length", "")
        if size.isdecimal() and int(size) <= LONGEST_BODY:
            self.rfile.read(int(size))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name
        """Log nothing: probes come every few seconds."""


def _host_of(header: str) -> str:
    has_port = ":" in header and not header.endswith("]")
    return (header.rpartition(":")[0] if has_port else header).strip("[]")


class Answering:
    """Counts requests that are being answered, so that the end of the program waits for a drain's answer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait_for_none(self, timeout: float) -> None:
        """Wait until none is left, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count, timeout)


class _Server(ThreadingHTTPServer):
    """Connections are bounded in number and time: a slow peer holds up no probe."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, settings: SideSettings, requests: LoopRequests) -> None:
        self.settings = settings
        self.requests = requests
        self.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        self.answering = Answering()
        self._open: dict[Any, float] = {}
        super().__init__((settings.host, settings.port), RequestHandler)

    def server_bind(self) -> None:
        """Bind, without HTTPServer's look-up of a name for the address."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.settings.host, self.server_address[1]

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

    def service_actions(self) -> None:
        """Cut connections that take too long, even if bytes keep coming."""
        now = time.monotonic()
        self._cut(*[request for request, until in list(self._open.items()) if now >= until])

    def cut_all(self) -> None:
        self._cut(*list(self._open))

    def _cut(self, *requests: Any) -> None:
        """Cut connections, each once: they count no longer, though their threads go on."""
        for request in requests:
            self._open.pop(request, None)
            cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke."""


def cut(connection: socket.socket) -> None:
    """Shut a connection down; the thread that reads from it sees its end."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class SidePort:
    """Listens once it is made, serves from `with` to the end of the block.

    Args:
        settings: address and token.
        requests: passes requests to the loop.

    Raises:
        ConfigError: the address cannot be bound.
    """

    def __init__(self, settings: SideSettings, requests: LoopRequests) -> None:
        try:
            self._server = _Server(settings, requests)
        except OSError as error:
            raise ConfigError(
                f"the side port cannot listen at {settings.host}:{settings.port}: {error.strerror or error}; "
                "choose another --http"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL,), name="taskmesh-http", daemon=True
        )

    @property
    def address(self) -> str:
        """The address at which it listens, as http://HOST:PORT."""
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.answering.wait_for_none(LAST_ANSWERS)
        self._server.cut_all()
        self._server.server_close()
