"""The dashboard's answers over HTTP: its pages, the feed, questions and actions."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskmesh.dashboard.access import Access, RequestRefused
from taskmesh.dashboard.feed import Feed, HubSession, Questions, encoded
from taskmesh.errors import HubUnreachable, TaskMeshError

QUESTIONS = frozenset({"tasks", "task", "logs", "events", "errors", "limits", "schedules"})
MOST_ROWS = 500
LONGEST_BODY = 64 << 10
PING = 15.0
"""Seconds without a message after which a stream carries an empty one, so that proxies keep it."""
STATIC = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Record = Callable[[str, Mapping[str, object]], None]


class Guarded:
    """All requests pass here: those that no page of ours makes are refused, and all answers get our headers.

    Args:
        app: answers the requests.
        access: says who may.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._access.check(scope["method"], Headers(scope=scope))
        except RequestRefused as refused:
            await answer({"error": refused.text}, refused.status)(scope, receive, sent)
        else:
            await self._app(scope, receive, sent)


def answer(value: object, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")


class Dashboard:
    """The answers behind the routes.

    Args:
        access: the token, and the sessions of browsers.
        hub: the session with the hub.
        record: logs an event.

    Attributes:
        feed: the news of the hub.
    """

    def __init__(self, access: Access, hub: HubSession, record: Record) -> None:
        self.feed = Feed(hub)
        self._access = access
        self._hub = hub
        self._record = record
        self._questions = Questions(hub)
        self._files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in KINDS}

    def application(self) -> ASGIApp:
        """Return the whole application, for a server."""
        routes = [
            Route("/", self.file),
            Route("/static/{name}", self.file),
            Route("/session", self.enter, methods=["POST"]),
            Route("/session/end", self.leave, methods=["POST"]),
            Route("/feed", self.stream),
            Route("/ask/{what}", self.ask),
            Route("/do/{verb}", self.act, methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {RequestRefused: _refused, TaskMeshError: _failed}
        app = Starlette(routes=routes, lifespan=self._life, exception_handlers=handlers)
        return Guarded(app, self._access)

    @contextlib.asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        asking = asyncio.create_task(self.feed.run())
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.to_thread(self._hub.close)  # questions under way end with it

    async def file(self, request: Request) -> Response:
        """Return a page, a module or the like: they hold no data, and need no token."""
        name = request.path_params.get("name", "index.html")
        found = self._files.get(name)
        if found is None:
            raise RequestRefused(404, "there is no such file")
        tag = f'"{hashlib.sha256(found).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(found, headers=headers, media_type=KINDS[Path(name).suffix])

    # --- sessions -------------------------------------------------------------------------------------------

    async def enter(self, request: Request) -> Response:
        """Give a browser that shows the token a session."""
        token = str((await _body(request)).get("token", ""))
        if self._access.is_guessed:
            await asyncio.sleep(1.0)
        session = self._access.opened(token)
        if not session:
            raise RequestRefused(401, "this is not the token")
        found = answer({"ok": True})
        found.headers["Set-Cookie"] = self._access.set_cookie(session)
        return found

    async def leave(self, request: Request) -> Response:
        """End a browser's session."""
        self._access.end(self._access.session_of(request.headers))
        found = answer({"ok": True})
        found.headers["Set-Cookie"] = self._access.set_cookie("")
        return found

    # --- the mesh -------------------------------------------------------------------------------------------

    async def stream(self, request: Request) -> Response:
        """Send the feed, as events, until the page closes, its session ends, or this program."""
        session = self._access.session_of(request.headers)
        self._access.take_stream(session)
        return StreamingResponse(self._messages(session), media_type="text/event-stream")

    async def _messages(self, session: str) -> AsyncIterator[bytes]:
        feed = self.feed
        with contextlib.ExitStack() as held:
            held.callback(self._access.give_stream, session)
            held.enter_context(feed.watched())
            start = {"allowed": sorted(self._access.settings.allowed), "flow": feed.flow.points()}
            yield b"event: start\ndata: " + encoded(start) + b"\n\ndata: " + feed.message + b"\n\n"
            while not feed.ended and self._access.is_open(session):
                try:
                    await asyncio.wait_for(feed.next.wait(), PING)
                    yield b"data: " + feed.message + b"\n\n"
                except TimeoutError:
                    yield b": ping\n\n"

    async def ask(self, request: Request) -> Response:
        """Answer a question, as the hub does, or with the reason why it has no answer."""
        self._access.session_of(request.headers)
        what = request.path_params["what"]
        if what not in QUESTIONS:
            raise RequestRefused(404, "there is no such question")
        given = request.query_params.get("limit", "100")
        limit = min(int(given), MOST_ROWS) if given.isdecimal() and len(given) < 6 else 100
        argument = request.query_params.get("argument", "")[:1000]
        try:
            found = await self._questions.ask(what, argument, limit)
        except HubUnreachable:
            raise
        except TaskMeshError as error:  # an answer as any other: that there is no such thing
            found = encoded({"error": str(error)})
        return Response(found, media_type="application/json")

    async def act(self, request: Request) -> Response:
        """Have the hub carry an action out, if it is allowed."""
        session = self._access.session_of(request.headers)
        verb = request.path_params["verb"]
        target = (await _body(request)).get("target")
        if verb not in self._access.settings.allowed:
            raise RequestRefused(403, f"this is not allowed here: --allow {verb[:20]} at the start")
        if not isinstance(target, str) or not target:
            raise RequestRefused(400, "an action has a target")
        fields = {"verb": verb, "target": target, "browser": session[:6]}
        try:
            found = await asyncio.to_thread(self._hub.command, verb, target)
        except TaskMeshError as error:
            self._record("dashboard.action", {**fields, "error": str(error)})
            raise
        self._record("dashboard.action", fields)
        return answer(found)


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises:
        RequestRefused: it is none, or too long.
    """
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_BODY:
                raise RequestRefused(413, "the body is too long")
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ClientDisconnect):
        raise RequestRefused(400, "the body is no JSON") from None
    if not isinstance(found, dict):
        raise RequestRefused(400, "the body is no object")
    return found


async def _refused(request: Request, error: RequestRefused) -> Response:
    return answer({"error": error.text}, error.status)


async def _failed(request: Request, error: TaskMeshError) -> Response:
    return answer({"error": str(error)}, 503 if isinstance(error, HubUnreachable) else 409)
