"""Redis as a store: one string for each outcome, which expires when the outcome does.

    taskmesh:{mesh}:kept:<hash of name and key>         see wire.kept for what is in it

All keys are in one slot of a cluster (the part in braces), and in the database that the URL names.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from taskmesh.errors import ConfigError, RemoteProtocolError
from taskmesh.stores import codec
from taskmesh.stores.address import StoreAddress
from taskmesh.stores.write_queue import QueuedOutcome
from taskmesh.stores.writer import Found, Skipped, StoreUnavailable, Written
from taskmesh.wire.runs import Kept

PREFIX: Final = b"taskmesh:{mesh}:kept:"
CONNECT, ANSWER = 2.0, 5.0
"""Seconds that a connection, or an answer, may take."""
SCAN = 500
"""Keys that are looked at in one step."""
PORTION = 8 << 20
"""Bytes of values that are asked for at once, a value at least."""
COMMANDS = "SCAN, STRLEN, PTTL, MGET, SET, PING and SELECT"

_LOCKED = "it asks for a password: put a URL with one into a file, and give --store-file FILE"
_REMEDIES: tuple[tuple[type[Exception], str], ...] = (
    (ReadOnlyError, "it is a replica, which cannot be written: name the primary in the URL"),
    (OutOfMemoryError, "it is full: raise its maxmemory, or set maxmemory-policy allkeys-lru"),
    (NoPermissionError, f"its user may not do that: allow {COMMANDS} on the keys taskmesh:*"),
    (AuthenticationError, "it refuses user or password: put the right ones into the URL of --store-file"),
    (MovedError, "it is one node of a cluster: name a server that is in none"),
)


class RedisLink:
    """`stores.writer.StoreLink` to one Redis server.

    Args:
        source: gives the address each time that a link is made: a mounted Secret may have changed.
    """

    def __init__(self, source: Callable[[], StoreAddress]) -> None:
        self._source = source
        self._client: Any = None

    def open(self) -> None:
        """Connects, and waits for the answer to a PING."""
        try:
            address = self._source()
        except ConfigError as error:
            raise StoreUnavailable(str(error)) from None
        more = {} if address.local else {"socket_keepalive": True, "socket_connect_timeout": CONNECT}
        with _told():
            self._client = redis.Redis.from_url(
                address.url, protocol=2, socket_timeout=ANSWER, retry=Retry(NoBackoff(), 0), **more
            )
            self._client.ping()

    def disconnect(self) -> None:
        """Close the connection; another thread that waits on it gets an error at once."""
        client = self._client
        if client is not None:
            with contextlib.suppress(RedisError, OSError):
                client.connection_pool.disconnect()

    def check(self) -> None:
        """PING."""
        with _told():
            self._client.ping()

    # --- reading ------------------------------------------------------------------------------------------

    def read(self, limit: int, found: Found, skipped: Skipped, stop: Callable[[], bool]) -> None:
        """Looks through the database in small steps (SCAN), so that others are served meanwhile."""
        seen: set[bytes] = set()
        cursor, room = 0, limit
        with _told():
            while room > 0 and not stop():
                cursor, keys = self._client.scan(cursor=cursor, match=PREFIX + b"*", count=SCAN)
                fresh = [key for key in dict.fromkeys(keys) if key not in seen]
                seen.update(fresh)
                for portion in self._portions(fresh, room, skipped):
                    if stop():
                        return
                    room -= self._read_portion(portion, found, skipped)
                if not cursor:
                    return

    def _portions(self, keys: Sequence[bytes], room: int, skipped: Skipped) -> Iterator[dict[bytes, float]]:
        """Keys whose values can be asked for together, each with the time when it expires."""
        asked = self._client.pipeline(transaction=False)
        for key in keys:
            asked.strlen(key)
            asked.pttl(key)
        answers = asked.execute(raise_on_error=False)
        now, size = time.monotonic(), 0
        portion: dict[bytes, float] = {}
        for key, length, left in zip(keys, answers[::2], answers[1::2], strict=True):
            if _is_wrong_type(length) or _is_wrong_type(left):
                skipped(f"{_text(key)}: it is no string")
            elif left == -1:
                skipped(f"{_text(key)}: it would never expire")
            elif left >= 0 and length <= room:
                if portion and size + length > PORTION:
                    yield portion
                    portion, size = {}, 0
                portion[key] = now + left / 1000
                size += length
                room -= length
        if portion:
            yield portion

    def _read_portion(self, portion: dict[bytes, float], found: Found, skipped: Skipped) -> int:
        size = 0
        for (key, until), value in zip(portion.items(), self._client.mget(list(portion)), strict=True):
            if value is None:  # it has expired meanwhile
                continue
            size += len(value)
            try:
                kept = codec.from_bytes(value)
            except RemoteProtocolError as error:
                skipped(f"{_text(key)}: {error}")
                continue
            if key != _key(kept):
                skipped(f"{_text(key)}: it is another task's outcome")
                continue
            found(until, kept)
        return size

    # --- writing ------------------------------------------------------------------------------------------

    def write(self, entries: Sequence[QueuedOutcome]) -> Written:
        """SET with the time that is left, all in one go; what is over by now is not stored."""
        now = time.monotonic()
        with _told(broken=True):
            asked = self._client.pipeline(transaction=False)
            for entry in entries:
                left = int((entry.until - now) * 1000)
                if left > 0:
                    asked.set(_key(entry.kept), codec.to_bytes(entry.kept), px=left)
            answers = asked.execute(raise_on_error=False)
        refusals = [answer for answer in answers if isinstance(answer, Exception)]
        for refusal in refusals:
            if not isinstance(refusal, OutOfMemoryError):
                raise StoreUnavailable(reason_of(refusal)) from None
        why = reason_of(refusals[0]) if refusals else ""
        return Written(len(answers) - len(refusals), len(refusals), why)


def reason_of(error: Exception) -> str:
    """Return why a store cannot be used, with what to do where that is known; servers name no passwords."""
    text = str(error) or type(error).__name__
    remedies = [remedy for kind, remedy in _REMEDIES if isinstance(error, kind)]
    if isinstance(error, AuthenticationError) and text.startswith("Authentication required"):
        remedies = [_LOCKED]
    return f"{remedies[0]} ({text})" if remedies else text


@contextlib.contextmanager
def _told(*, broken: bool = False) -> Iterator[None]:
    """Turns what redis-py raises into StoreUnavailable."""
    try:
        yield
    except StoreUnavailable:
        raise
    except ResponseError as error:
        raise StoreUnavailable(reason_of(error)) from error
    except (
        Exception
    ) as error:  # whatever comes of a connection that is disconnect while another thread waits on it
        raise StoreUnavailable(reason_of(error), broken=broken) from error


def _is_wrong_type(answer: object) -> bool:
    """Return whether a key holds no string, which is its own fault; raises what is not."""
    if not isinstance(answer, Exception):
        return False
    if not str(answer).startswith("WRONGTYPE"):
        raise answer
    return True


def _key(kept: Kept) -> bytes:
    return PREFIX + codec.place(kept).encode()


def _text(key: bytes) -> str:
    return key.decode(errors="replace")[:200]
