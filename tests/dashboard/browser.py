"""A browser without a screen: requests to a dashboard as its pages make them, and as others would."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from tests.harness.program import Program
from tests.harness.waiting import wait_until


class Browser:
    """A browser that has opened the address that a dashboard has printed.

    Attributes:
        host: of the dashboard, with the port.
        token: of the address; empty if it has none.
        cookie: what it was given, by name and value.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.token = parts.fragment.removeprefix("t=")
        self.cookie = ""
        self.headers: Mapping[str, str] = {}

    @property
    def own(self) -> dict[str, str]:
        """The headers that a browser sends with a change by one of the dashboard's own pages."""
        return {
            "Content-Type": "application/json",
            "Origin": f"http://{self.host}",
            "Sec-Fetch-Site": "same-origin",
        }

    @contextlib.contextmanager
    def send(
        self, method: str, path: str, body: str | bytes = b"", **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Make a request with the cookie, if there is one, and these headers; underscores are hyphens."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        cookie = {"Cookie": self.cookie} if self.cookie else {}
        with contextlib.closing(http.client.HTTPConnection(self.host, timeout=10)) as connection:
            connection.request(method, path, body or None, {**cookie, **given})
            with contextlib.closing(connection.getresponse()) as response:
                yield response

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        with self.send("GET", path, **headers) as response:
            return response.status, told(response)

    def post(self, path: str, value: object, **headers: str) -> tuple[int, Any]:
        """Make a change, with the headers of an own page besides."""
        sent = {**{name.replace("-", "_"): text for name, text in self.own.items()}, **headers}
        with self.send("POST", path, json.dumps(value), **sent) as response:
            self.headers = dict(response.getheaders())
            return response.status, told(response)

    def enter(self, token: str = "") -> int:
        """Show the token; return the status."""
        status, _ = self.post("/session", {"token": token or self.token})
        self.cookie = self.headers.get("set-cookie", "").partition(";")[0]
        return status

    def stream(self) -> contextlib.AbstractContextManager[http.client.HTTPResponse]:
        """Open the feed."""
        return self.send("GET", "/feed")

    def news(self) -> Generator[dict[str, Any]]:
        """The messages of the feed, but for the first, which is about the page."""
        with self.stream() as response:
            assert response.status == 200, response.read()
            for line in response:
                if line.startswith(b"data: ") and b'"error"' in line:
                    yield json.loads(line.removeprefix(b"data: "))


def told(response: http.client.HTTPResponse) -> Any:
    """The value in a response, or its text."""
    text = response.read().decode()
    return json.loads(text) if "json" in response.headers.get("Content-Type", "") else text


def browser_of(program: Program) -> Browser:
    """A browser at a dashboard, with the token of its address."""
    return Browser(program.ready()["url"])


def inside(program: Program) -> Browser:
    """A browser that has shown the token."""
    browser = browser_of(program)
    assert browser.enter() == 200
    return browser


def seen(browser: Browser, found: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait for a message of the feed that `found` holds for."""
    with contextlib.closing(browser.news()) as news:
        return wait_until(lambda: next((each for each in [next(news)] if found(each)), None), 20)
