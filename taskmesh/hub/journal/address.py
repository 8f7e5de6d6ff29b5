"""The URL of a journal in Redis, and what may stand in it where others can read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from taskmesh.errors import ConfigError

SCHEMES = ("redis", "rediss", "unix")
OPTIONS = frozenset({"db", "ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile"})
"""Parameters behind the question mark: TLS, and the database of a socket in the file system."""
_FORM = "write redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH?db=DB; for a file ./NAME"
_PATH = re.compile(r"\.{0,2}/(?!/)")
_URL = re.compile(r"[^/]*:|\w*//|.*@")


def looks_like_url(text: str) -> bool:
    """Return True unless a text is the name of a file: a URL with a slash too few is none.

    A file of its name would be made, and its password be shown with the file's name.
    """
    return "://" in text or (not _PATH.match(text) and bool(_URL.match(text)))


@dataclass(frozen=True, slots=True)
class JournalAddress:
    """The address of a journal in Redis.

    Attributes:
        url: the whole URL.
        shown: the URL without user and password, for people.
        secret: True if it has a password.
        local: True if it is a socket in the file system.
    """

    url: str
    shown: str
    secret: bool
    local: bool

    def __repr__(self) -> str:
        return f"<JournalAddress {self.shown}>"

    @classmethod
    def of(cls, url: str) -> JournalAddress:
        """Read a URL; what it complains of never shows a password.

        Raises:
            ConfigError: it is no such URL.
        """
        try:
            parts = urlsplit(url)
            host, port, password = parts.hostname or "", parts.port, parts.password
        except ValueError:
            raise ConfigError(f"the journal's URL cannot be read: {_FORM}") from None
        if parts.scheme not in SCHEMES:
            raise ConfigError(f"a journal's URL begins with redis://, rediss:// or unix://: {_FORM}")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "password" in options:
            raise ConfigError("a password stands before the host: redis://USER:PASSWORD@HOST:PORT/DB")
        unknown = sorted(options.keys() - OPTIONS)
        if unknown:
            raise ConfigError(
                f"the journal's URL has options that are unknown: {', '.join(unknown)}; "
                f"known are {', '.join(sorted(OPTIONS))}"
            )
        local = parts.scheme == "unix"
        path = parts.path if local else parts.path.strip("/")
        database = options.get("db", "0" if local else path or "0")
        named = path.startswith("/") if local else bool(host) and path in ("", database)
        if not named or not database.isdecimal():
            raise ConfigError(f"the journal's URL does not name a server and a database's number: {_FORM}")
        place = path if local else f"{f'[{host}]' if ':' in host else host}:{port or 6379}"
        shown = f"unix://{place}?db={database}" if local else f"{parts.scheme}://{place}/{database}"
        return cls(url, shown, password is not None, local)
