"""Rights at the dashboard: its address and token, sessions of browsers, requests that are refused."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from taskmesh.errors import ConfigError, InsecureBind
from taskmesh.http.settings import http_parts, read_token
from taskmesh.system.loopback import is_loopback

ACTIONS = ("cancel", "stack", "pause", "resume", "drain")
"""Verbs of operators' commands that may be allowed to browsers."""
SESSION_S = 12 * 3600.0
MOST_SESSIONS = 1000
STREAMS, STREAMS_OF_ONE = 64, 8
"""Feeds at a time, of all browsers and of one."""
FAILURES = 5
"""Wrong tokens in a second, above which every further answer takes a second."""


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """Settings of a dashboard.

    Attributes:
        host: where it listens, without brackets.
        port: the port; 0 for any free one.
        token_file: the file with the token; None for one that is made at the start.
        proxied: the host name of a proxy with TLS before it, by which browsers reach it; empty for none.
        allowed: the actions that browsers may have done.
    """

    host: str
    port: int
    token_file: Path | None = None
    proxied: str = ""
    allowed: frozenset[str] = frozenset()


def dashboard_settings(
    http: str, token_file: str = "", proxied: str = "", allowed: str = ""
) -> DashboardSettings:
    """Return the settings, checked.

    Args:
        http: HOST:PORT.
        token_file: the path of the token's file; empty for none.
        proxied: as the attribute.
        allowed: names of actions, separated by commas.

    Raises:
        ConfigError: one of them cannot be used.
        InsecureBind: the address is beyond loopback, and there is no token of its own or no proxy.
    """
    host, port = http_parts(http)
    if token_file:
        read_token(Path(token_file))
    if not is_loopback(host) and not (token_file and proxied):
        raise InsecureBind(
            f"the dashboard at {http} is beyond loopback: that takes --token-file FILE and --behind-proxy "
            "HOST, for it speaks no TLS itself. Or take 127.0.0.1 and a tunnel: "
            "ssh -L 5581:127.0.0.1:5581 HOST"
        )
    names = frozenset(filter(None, (name.strip() for name in allowed.split(","))))
    if unknown := names.difference(ACTIONS):
        raise ConfigError(f"--allow knows no {', '.join(sorted(unknown))}; there are {', '.join(ACTIONS)}")
    return DashboardSettings(host, port, Path(token_file) if token_file else None, proxied.lower(), names)


class RequestRefused(Exception):
    """Internal: a request is refused.

    Args:
        status: of HTTP.
        text: the reason.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Access:
    """The token, and the sessions of browsers that have shown it.

    Args:
        settings: the dashboard's.

    Attributes:
        cookie: the name of the cookie. It names the port, for browsers do not keep those of ports apart.
        made: the token that was made here; empty if a file has it.
    """

    def __init__(self, settings: DashboardSettings) -> None:
        self.settings = settings
        self.cookie = f"taskmesh-{settings.port}"
        self.made = "" if settings.token_file is not None else secrets.token_urlsafe(32)
        self._sessions: OrderedDict[str, float] = OrderedDict()
        self._streams: dict[str, int] = {}
        self._failures: deque[float] = deque(maxlen=FAILURES)

    # --- the token ------------------------------------------------------------------------------------------

    def opened(self, token: str) -> str:
        """Return a new session for who shows the token; empty if it is another one.

        The file is read each time: the token may be replaced while this program runs.
        """
        try:
            right = self.made or read_token(self.settings.token_file or Path())
        except ConfigError:
            right = ""
        if not right or not hmac.compare_digest(token.encode(), right.encode()):
            self._failures.append(time.monotonic())
            return ""
        session = secrets.token_urlsafe(32)
        self._sessions[session] = time.monotonic() + SESSION_S
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    @property
    def is_guessed(self) -> bool:
        """True if so many wrong tokens came in the last second that the next one waits."""
        return len(self._failures) == FAILURES and time.monotonic() - self._failures[0] < 1.0

    def is_open(self, session: str) -> bool:
        return self._sessions.get(session, 0.0) > time.monotonic()

    def end(self, session: str) -> None:
        self._sessions.pop(session, None)

    # --- streams --------------------------------------------------------------------------------------------

    def take_stream(self, session: str) -> None:
        """Count a stream of a session.

        Raises:
            RequestRefused: there are too many.
        """
        if sum(self._streams.values()) >= STREAMS or self._streams.get(session, 0) >= STREAMS_OF_ONE:
            raise RequestRefused(503, "too many pages are open: close some")
        self._streams[session] = self._streams.get(session, 0) + 1

    def give_stream(self, session: str) -> None:
        self._streams[session] -= 1
        if not self._streams[session]:
            del self._streams[session]

    # --- requests -------------------------------------------------------------------------------------------

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuse a request that no page of ours makes.

        A page elsewhere could reach this program by a name that it rebinds to loopback, or post here.

        Args:
            method: of the request.
            headers: its headers, by lower-case names.

        Raises:
            RequestRefused: it is one.
        """
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise RequestRefused(403, "this host name is not the dashboard's: see --behind-proxy")
        site = headers.get("sec-fetch-site", "")
        if method in ("GET", "HEAD"):
            return
        if (
            method != "POST"
            or headers.get("content-type", "").partition(";")[0].strip() != "application/json"
        ):
            raise RequestRefused(403, "changes are made by POST, with JSON")
        if site != "same-origin" or headers.get("origin", "").partition("://")[2] != host:
            raise RequestRefused(403, "changes are made by the dashboard's own pages")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or bool(name and name == self.settings.proxied)

    def session_of(self, headers: Mapping[str, str]) -> str:
        """Return the session whose cookie a request has.

        Raises:
            RequestRefused: it has none, or comes from another site.
        """
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RequestRefused(403, "what the mesh tells is for the dashboard's own pages")
        for part in headers.get("cookie", "").split(";"):
            name, _, session = part.strip().partition("=")
            if name == self.cookie and self.is_open(session):
                return session
        raise RequestRefused(401, "show the token: open the address that `taskmesh dashboard` has printed")

    def set_cookie(self, session: str) -> str:
        """Return the header that gives a browser its session, or with an empty one takes it away."""
        age = int(SESSION_S) if session else 0
        secure = "; Secure" if self.settings.proxied else ""
        return f"{self.cookie}={session}; Max-Age={age}; Path=/; HttpOnly; SameSite=Strict{secure}"
