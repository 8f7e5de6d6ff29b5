"""A journal in Redis (7 or newer) or Valkey: a hash, changed by scripts that compare owner and number.

    taskmesh:{journal}:state            form, epoch, owner, link and number
    taskmesh:{journal}:entries          values by key, each behind its CRC; an empty one is in `large`
    taskmesh:{journal}:large            values above LARGE: `entries` can be read in steps of some megabytes
    taskmesh:{journal}:new:entries, taskmesh:{journal}:new:large       a replacement that is on its way

Redis writes a script's changes to its append-only file as one transaction. The tier is the server's: with
`appendfsync always` it answers when they are on disk, with `everysec` when it has them.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.retry import Retry

from taskmesh.errors import ConfigError
from taskmesh.hub.journal.address import JournalAddress
from taskmesh.hub.journal.store import (
    FORMAT,
    PORTION_BYTES,
    PORTION_ENTRIES,
    Changes,
    JournalRefused,
    JournalRegressed,
    JournalSuperseded,
    JournalUnavailable,
    Opened,
)

PREFIX: Final = "taskmesh:{journal}:"
CONNECT, ANSWER = 2.0, 5.0
"""Seconds that a connection, or an answer, may take."""
OLDEST: Final = 7
"""The oldest version of Redis: older ones run scripts in part if they have no memory left."""
LARGE: Final = 16 << 10
SCAN: Final = 500
"""Entries that are read in one step."""
MOST_BYTES: Final = 500 << 20
"""The most that a transaction may have: Redis takes 512 MB in a value, and 1 GB in a command."""
COMMANDS = (
    "EVALSHA, SCRIPT LOAD, HSCAN, HGET, HLEN, HMGET, HSET, HDEL, EXISTS, UNLINK, RENAME, INFO, CONFIG GET, "
    "MEMORY USAGE and SELECT"
)

_STATE, _ENTRIES, _LARGE = PREFIX + "state", PREFIX + "entries", PREFIX + "large"
_NEW_ENTRIES, _NEW_LARGE = PREFIX + "new:entries", PREFIX + "new:large"
_KEYS: Final = (_STATE, _ENTRIES, _LARGE, _NEW_ENTRIES, _NEW_LARGE)

# With `#!lua` Redis refuses a script as a whole if it is out of memory or cannot write its file.
# A script gets all keys, and returns a word, epoch and number.
_STATE_READ: Final = """#!lua
local state = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'link', 'number', 'form', 'count')
local number = tonumber(state[4] or 0)
local function answer(word) return {word, state[1] or '0', number} end
local function count() redis.call('HSET', KEYS[1], 'count', redis.call('HLEN', KEYS[2])) end
local lacks = tonumber(state[6] or 0) ~= redis.call('HLEN', KEYS[2])
"""
_OPEN: Final = (
    _STATE_READ
    + """
if state[5] and state[5] ~= ARGV[1] then return answer(state[5]) end
if lacks and ARGV[2] == '0' then return answer('lacks') end
state[1] = string.format('%d', math.max(tonumber(state[1] or 0), tonumber(ARGV[2])) + 1)
redis.call('HSET', KEYS[1], 'form', ARGV[1], 'epoch', state[1], 'owner', ARGV[3], 'link', ARGV[4], 'number',
    string.format('%d', number))
redis.call('UNLINK', KEYS[4], KEYS[5])
return answer('done')
"""
)
_FENCE: Final = (
    _STATE_READ
    + """
if state[2] ~= ARGV[1] then return answer('other') end
"""
)
_REJOIN: Final = (
    _FENCE
    + """
if lacks then return answer('lacks') end
redis.call('HSET', KEYS[1], 'link', ARGV[2])
redis.call('UNLINK', KEYS[4], KEYS[5])
return answer('done')
"""
)
_NEXT: Final = (
    _FENCE
    + """
if state[3] ~= ARGV[2] then return answer('stale') end
if tonumber(ARGV[3]) <= number then return answer('done') end
if tonumber(ARGV[3]) > number + 1 then return answer('gap') end
local function each(command, key, first, last)
    for from = first, last, 4000 do
        redis.call(command, key, unpack(ARGV, from, math.min(from + 3999, last)))
    end
end
"""
)
# ARGV: owner, link, number, the counts of drops, puts and large puts, and these.
_WRITE: Final = (
    _NEXT
    + """
if lacks then return answer('lacks') end
redis.call('HSET', KEYS[1], 'number', ARGV[3])
local puts = 7 + ARGV[4]
local large = puts + 2 * ARGV[5]
if redis.call('EXISTS', KEYS[3]) == 1 then
    each('HDEL', KEYS[3], 7, puts - 1)
    for at = puts, large - 1, 2 do redis.call('HDEL', KEYS[3], ARGV[at]) end
end
each('HDEL', KEYS[2], 7, puts - 1)
each('HSET', KEYS[2], puts, large - 1)
for at = large, #ARGV, 2 do
    redis.call('HSET', KEYS[2], ARGV[at], '')
    redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 1])
end
count()
return answer('done')
"""
)
_STAGE: Final = (
    _NEXT
    + """
if ARGV[4] == '1' then redis.call('UNLINK', KEYS[4], KEYS[5]) end
local large = 7 + 2 * ARGV[5]
each('HSET', KEYS[4], 7, large - 1)
for at = large, #ARGV, 2 do
    redis.call('HSET', KEYS[4], ARGV[at], '')
    redis.call('HSET', KEYS[5], ARGV[at], ARGV[at + 1])
end
return answer('staged')
"""
)
_REPLACE: Final = (
    _NEXT
    + """
redis.call('HSET', KEYS[1], 'number', ARGV[3])
redis.call('UNLINK', KEYS[2], KEYS[3])
for new = 4, 5 do
    if redis.call('EXISTS', KEYS[new]) == 1 then redis.call('RENAME', KEYS[new], KEYS[new - 2]) end
end
count()
return answer('done')
"""
)

_REMEDIES: tuple[tuple[type[Exception], str], ...] = (
    (ReadOnlyError, "it is a replica, which cannot be written: name the primary in the URL"),
    (OutOfMemoryError, "it is full: raise its maxmemory"),
    (NoPermissionError, f"its user may not do that: allow {COMMANDS} on the keys taskmesh:*"),
    (AuthenticationError, "it refuses user or password: put the right ones into the URL"),
    (MovedError, "it is one node of a cluster: name a server that is in none"),
)


class RedisJournal:
    """`JournalStore` in one database of a Redis server.

    Args:
        source: gives the address each time that a link is made: a mounted Secret may have changed.
        strict: the server must have `appendfsync always`; a transaction is confirmed when it is on disk.
    """

    def __init__(self, source: Callable[[], JournalAddress], strict: bool = False) -> None:
        self._source = source
        self._strict = strict
        self._client: Any = None
        self._scripts: dict[str, str] = {}
        self._shown = "Redis"
        self._synced = False
        self._epoch, self._owner, self._link = 0, "", ""

    # --- opening ------------------------------------------------------------------------------------------

    def open(self, above: int = 0) -> Opened:
        """Raise the epoch, under a new owner's name."""
        self._connect()
        owner, link = secrets.token_hex(8), secrets.token_hex(8)
        word, epoch, number = self._run(_OPEN, FORMAT, above, owner, link)
        if word == "lacks":
            raise JournalRefused(
                f"{self._shown} has lost entries of its journal. Put back a copy of its files, or delete the "
                f"keys {PREFIX}* to begin with an empty journal"
            )
        if word != "done":
            raise self._foreign(word)
        self._epoch, self._owner, self._link = epoch, owner, link
        return Opened(epoch, number)

    def rejoin(self, number: int) -> int:
        """Give the link a new name; what the old one still sends does not have it."""
        self._connect()
        link = secrets.token_hex(8)
        word, epoch, last = self._run(_REJOIN, self._owner, link)
        self._refuse(word, epoch, last, number + 1)
        if last < number:
            raise JournalRegressed(f"{self._shown} ends with transaction {last}, but {number} was written")
        self._link = link
        return last

    def _connect(self) -> None:
        """Make a new link to a server that may keep a journal."""
        self.close()
        try:
            address = self._source()
        except ConfigError as error:
            raise JournalUnavailable(str(error)) from None
        self._shown = address.shown
        more = {} if address.local else {"socket_keepalive": True, "socket_connect_timeout": CONNECT}
        with self._told():
            self._client = redis.Redis.from_url(
                address.url, protocol=2, socket_timeout=ANSWER, retry=Retry(NoBackoff(), 0), **more
            )
            self._scripts = {}
            self._examine()

    def _examine(self) -> None:
        """Refuse a server that would lose entries, with the lines that it needs."""
        found = self._client.info()
        version = str(found.get("redis_version", ""))
        if not version.partition(".")[0].isdecimal() or int(version.partition(".")[0]) < OLDEST:
            raise JournalRefused(
                f"{self._shown} is version {version}: a journal needs Redis {OLDEST} or newer, or Valkey"
            )
        if found.get("cluster_enabled"):
            raise JournalRefused(
                f"{self._shown} is one node of a cluster: name a server that is in none (cluster-enabled no)"
            )
        if found.get("role") != "master":
            raise JournalRefused(
                f"{self._shown} is a replica, which cannot be written: name the primary in the URL, "
                "or put `replicaof no one` into redis.conf"
            )
        synced = self._client.config_get("appendfsync").get("appendfsync")
        self._synced = synced == "always"
        self._refuse_lossy(
            {
                "appendonly yes": bool(found.get("aof_enabled")),
                "maxmemory-policy noeviction": found.get("maxmemory_policy") == "noeviction",
                "appendfsync always" if self._strict else "appendfsync everysec": self._synced
                or (synced == "everysec" and not self._strict),
            }
        )

    def _refuse_lossy(self, lines: dict[str, bool]) -> None:
        missing = [line for line, is_set in lines.items() if not is_set]
        if missing:
            text = "\n".join(f"    {line}" for line in missing)
            raise JournalRefused(
                f"{self._shown} would lose accepted tasks: put into its redis.conf and start it again\n{text}"
            )

    def close(self) -> None:
        """Close the connection; another thread that waits on it gets an error at once."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(RedisError, OSError):
                client.connection_pool.disconnect()

    # --- reading ------------------------------------------------------------------------------------------

    def load(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Read the hash in small steps (HSCAN), so that others are served meanwhile."""
        self._attach()
        portion: list[tuple[bytes, bytes]] = []
        size = 0
        for key, stored in self._scan():
            value = self._value(key, stored)
            if value is None:
                continue
            if portion and (size + len(value) > PORTION_BYTES or len(portion) == PORTION_ENTRIES):
                yield portion
                portion, size = [], 0
            portion.append((key, value))
            size += len(value)
        if portion:
            yield portion

    def _scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each entry once; Redis repeats some if the hash shrinks meanwhile."""
        seen: set[bytes] = set()
        cursor = 0
        while True:
            with self._told():
                cursor, found = self._client.hscan(_ENTRIES, cursor, count=SCAN)
            for key, stored in found.items():
                if key not in seen:
                    seen.add(key)
                    yield key, stored
            if not cursor:
                return

    def _value(self, key: bytes, stored: bytes) -> bytes | None:
        if not stored:
            found = self._large(key)
            if found is None and not self._epoch:  # a hub that runs has dropped it meanwhile
                return None
            stored = found or b""
        if len(stored) < 4 or stored[:4] != _crc(key, stored[4:]):
            raise JournalRefused(
                f"{self._shown} is damaged (the entry {key!r} was changed); nothing was deleted. Put back a "
                f"copy of its files, or delete the keys {PREFIX}* to begin with an empty journal"
            )
        return stored[4:]

    def _large(self, key: bytes) -> bytes | None:
        with self._told():
            found: bytes | None = self._client.hget(_LARGE, key)
        return found

    # --- writing ------------------------------------------------------------------------------------------

    def write(self, number: int, changes: Changes) -> None:
        """One script."""
        if changes.size > MOST_BYTES:
            raise self._too_large(changes.size)
        small, large = _arguments(changes.puts)
        counts = len(changes.drops), len(small) // 2, len(large) // 2
        self._store(_WRITE, number, *counts, *changes.drops, *small, *large)

    def replace(self, number: int, puts: Mapping[bytes, bytes]) -> None:
        """Write the entries beside the old ones, in portions, then let them take their place."""
        is_first = 1
        for portion in self._portions(puts):
            small, large = _arguments(portion)
            counts = is_first, len(small) // 2, len(large) // 2
            if self._store(_STAGE, number, *counts, *small, *large) == "done":
                return
            is_first = 0
        self._store(_REPLACE, number)

    def _portions(self, puts: Mapping[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
        """Yield entries in portions; an empty one first, which removes what an earlier try has left."""
        portion: dict[bytes, bytes] = {}
        yield portion
        size = 0
        for key, value in puts.items():
            if len(value) > MOST_BYTES:
                raise self._too_large(len(value))
            if portion and size + len(value) > PORTION_BYTES:
                yield portion
                portion, size = {}, 0
            portion[key] = value
            size += len(key) + len(value)
        if portion:
            yield portion

    def _too_large(self, size: int) -> JournalRefused:
        return JournalRefused(
            f"{size} bytes at once are more than {self._shown} takes ({MOST_BYTES}): make values smaller"
        )

    def _store(self, script: str, number: int, *arguments: object) -> str:
        self._attach()
        word, epoch, last = self._run(script, self._owner, self._link, number, *arguments)
        self._refuse(word, epoch, last, number)
        return word

    def sync(self) -> None:
        """Look at the epoch: Redis syncs by itself, in each second or at once."""
        self.check()

    def check(self) -> None:
        """Look at the server's settings, and compare the epoch."""
        self._attach()
        with self._told():
            self._examine()
            epoch, owner, number = self._state()
            kept = self._client.hget(_STATE, "count"), self._client.hlen(_ENTRIES)
        if owner != self._owner:
            self._refuse("other", epoch, number, number)
        if int(kept[0] or 0) != kept[1]:  # nobody else writes to it
            self._refuse("lacks", epoch, number, number)

    def status(self) -> dict[str, object]:
        """Count entries; Redis estimates their bytes."""
        self._attach()
        with self._told():
            epoch, _, number = self._state()
            entries = self._client.hlen(_ENTRIES)
            disk_bytes = self._client.info("persistence").get("aof_current_size", 0)
            sizes = [self._client.memory_usage(key, samples=100) or 0 for key in (_ENTRIES, _LARGE)]
        return {
            "where": self._shown,
            "entries": entries,
            "bytes": sum(sizes),
            "disk_bytes": disk_bytes,
            "epoch": epoch,
            "number": number,
            "survives": "a loss of power"
            if self._synced
            else "the end of the hub; that of Redis and a loss of power but for the last two seconds",
        }

    # --- scripts and failures -----------------------------------------------------------------------------

    def _attach(self) -> None:
        """Make a link if there is none, to a journal that is there."""
        if self._client is not None:
            return
        self._connect()
        form = self._form()
        if form is None and not self._epoch:
            raise JournalRefused(f"there is no journal at {self._shown}")
        if form is not None and form != b"%d" % FORMAT:
            raise self._foreign(form.decode(errors="replace"))

    def _form(self) -> bytes | None:
        with self._told():
            found: bytes | None = self._client.hget(_STATE, "form")
        return found

    def _state(self) -> tuple[int, str, int]:
        epoch, owner, number = self._client.hmget(_STATE, "epoch", "owner", "number")
        return int(epoch or 0), (owner or b"").decode(), int(number or 0)

    def _run(self, script: str, *arguments: object) -> tuple[str, int, int]:
        with self._told():
            try:
                word, epoch, number = self._evaluate(script, arguments)
            except NoScriptError:  # somebody has flushed the scripts
                self._scripts.clear()
                word, epoch, number = self._evaluate(script, arguments)
        return word.decode(), int(epoch), int(number)

    def _evaluate(self, script: str, arguments: tuple[object, ...]) -> Any:
        client = self._client
        digest = self._scripts.get(script)
        if digest is None:
            digest = self._scripts[script] = client.script_load(script)
        return client.evalsha(digest, len(_KEYS), *_KEYS, *arguments)

    def _refuse(self, word: str, epoch: int, last: int, number: int) -> None:
        """Raise what an answer means, unless the script has done its work."""
        if word == "gap":
            raise JournalRegressed(
                f"{self._shown} ends with transaction {last}, but {number - 1} was written"
            )
        if word == "lacks":
            raise JournalRegressed(f"{self._shown} has lost entries that were written")
        if word == "stale":
            raise JournalUnavailable(f"{self._shown}: the link was replaced by another one")
        if word == "other" and epoch > self._epoch:
            raise JournalSuperseded(
                f"another hub has opened the journal in {self._shown} (epoch {epoch}, ours is {self._epoch})"
            )
        if word == "other":
            raise JournalRegressed(
                f"{self._shown} has another journal than was written (epoch {epoch}, not {self._epoch})"
            )

    def _foreign(self, form: str) -> JournalRefused:
        return JournalRefused(
            f"the journal in {self._shown} was made by another version of taskmesh (form {form}, this one "
            f"reads {FORMAT}): start that version, or name another database"
        )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what redis-py raises into the journal's own errors."""
        try:
            yield
        except (JournalRefused, JournalUnavailable):
            raise
        except (
            Exception
        ) as error:  # a connection that is closed while another thread waits on it raises anything
            raise JournalUnavailable(f"{self._shown}: {_reason(error)}") from error


def _arguments(puts: Mapping[bytes, bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return keys and stored values, of small and of large entries."""
    small: list[bytes] = []
    large: list[bytes] = []
    for key, value in puts.items():
        (large if len(value) > LARGE else small).extend((key, _crc(key, value) + value))
    return small, large


def _crc(key: bytes, value: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(value, zlib.crc32(key)))


def _reason(error: Exception) -> str:
    """Return why a server cannot be used, with what to do where that is known; servers name no passwords."""
    text = str(error) or type(error).__name__
    remedy = next((remedy for kind, remedy in _REMEDIES if isinstance(error, kind)), "")
    return f"{remedy} ({text})" if remedy else text
