"""A journal in one file on a local disk: SQLite with a write-ahead log.

A transaction is a transaction that first compares epoch and number. The tier decides when it is confirmed:

    everysec   when it is in the log, in the kernel's memory: it survives the process,
               and after `sync` a loss of power
    strict     when the log is on disk

SQLite recovers to the end of a transaction, but has no checksum of pages: each entry carries a CRC. A log
that is gone, or of which a part is damaged, it takes for one that ends sooner: PATH-number has the number of
a transaction that was on disk. While a hub writes, the file, its log and their places are looked at after
each transaction.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

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

APPLICATION: Final = 0x746D6A6E
"""The number that tells a journal from other SQLite databases: "tmjn"."""
LOCK_WAIT: Final = 5.0
"""Seconds to wait for another process that has the file locked."""
PAGE: Final = 16 << 10
LOG_PAGES, LOG_BYTES = 1024, 64 << 20
"""Pages in the log after which SQLite moves them into the file, and the most that a log keeps of the disk."""
SPARE_BYTES, SHRINK_PAGES = 64 << 20, 1024
"""Unused bytes that a file may have besides its entries, and pages that are given back at once."""
REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "lustre", "glusterfs", "afs"}
)
"""File systems that several machines share: SQLite's log cannot be on one."""

_SCHEMA: Final = f"""
    PRAGMA page_size = {PAGE};
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    PRAGMA application_id = {APPLICATION};
    PRAGMA user_version = {FORMAT};
    CREATE TABLE state (id INTEGER PRIMARY KEY, epoch INTEGER, owner TEXT, number INTEGER);
    INSERT INTO state VALUES (0, 0, '', 0);
    CREATE TABLE entries (id INTEGER PRIMARY KEY, key BLOB UNIQUE, value BLOB, crc INTEGER);
"""  # noqa: S608 - numbers of ours
_PUT: Final = "INSERT OR REPLACE INTO entries (key, value, crc) VALUES (?, ?, ?)"
_STATE: Final = "SELECT epoch, owner, number FROM state WHERE id = 0"
_MOST: Final = 1 << 62
"""Above any epoch and number."""
_MAGIC, _HEADER, _PAGES = b"SQLite format 3\0", 100, slice(28, 32)
"""The first bytes of an SQLite file, the size of its header, and the place of the number of pages in that."""
_MOVED: Final = "was removed or replaced while a hub wrote to it"
_SPOILT: Final = "it was cut off or overwritten while a hub wrote to it"


class FileJournal:
    """`JournalStore` in a file.

    Args:
        path: the file; SQLite's log and index stand beside it, as PATH-wal and PATH-shm, and PATH-number.
        strict: a transaction is confirmed when it is on disk.
    """

    def __init__(self, path: str | os.PathLike[str], strict: bool = False) -> None:
        self._path = Path(path).absolute()
        self._strict = strict
        self._database: sqlite3.Connection | None = None
        self._file = self._log = self._mark = -1
        self._identity, self._size = (0, 0), 0
        self._epoch, self._owner, self._number = 0, "", 0
        self._torn = self._spoilt = False

    @property
    def _log_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}-wal")

    @property
    def _mark_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}-number")

    # --- opening ------------------------------------------------------------------------------------------

    def open(self, above: int = 0) -> Opened:
        """Raise the epoch in a transaction of its own."""
        self._detach()
        with self._told():
            if not self._path.exists():
                self._refuse_remote()
                self._make()
            database = self._attach()
            if not above:
                self._refuse_missing(database)
        owner = secrets.token_hex(8)
        with self._transaction() as database:
            epoch, _, number = self._state(database)
            epoch = max(epoch, above) + 1
            database.execute("UPDATE state SET epoch = ?, owner = ?", (epoch, owner))
        self._epoch, self._owner, self._number = epoch, owner, number
        self._torn = self._spoilt = False
        with self._told():
            self._mark = os.open(self._mark_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._fsync()
        return Opened(epoch, number)

    def rejoin(self, number: int) -> int:
        """Open the file again; what was written before the disk failed counts for nothing."""
        self._detach()
        if self._torn:
            raise JournalRegressed(f"the disk failed below {self._path}: nobody knows what of it was written")
        with self._told():
            if not self._path.exists() or (self._spoilt and self._has_moved()):
                raise JournalRegressed(f"{self._path} {_MOVED}")
            if self._spoilt:
                raise JournalRefused(self._damaged(_SPOILT))
            self._attach()
        with self._transaction() as database:
            last = self._last(database)
        if last < number:
            raise JournalRegressed(f"{self._path} ends with transaction {last}, but {number} was written")
        with self._told():
            self._mark = os.open(self._mark_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return last

    def _make(self) -> None:
        """Make the file elsewhere and give it its name when it is whole: a kill leaves a journal or none."""
        if self._log_path.exists():
            raise JournalRefused(
                f"{self._log_path} is there without {self._path}: it may hold what was written last. "
                f"Put both back together, or move it away to begin with an empty journal"
            )
        try:
            descriptor, new = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        except FileNotFoundError:
            raise JournalRefused(f"the folder of {self._path} does not exist: make it") from None
        except PermissionError:
            raise JournalRefused(f"{self._path.parent} cannot be written: change its owner or mode") from None
        os.close(descriptor)
        try:
            database = sqlite3.connect(new, isolation_level=None)
            try:
                database.executescript(_SCHEMA)
            finally:
                database.close()
            self._mark_path.unlink(missing_ok=True)  # of another file
            with contextlib.suppress(FileExistsError):  # another process was quicker
                os.link(new, self._path)
        finally:
            os.unlink(new)

    def _attach(self) -> sqlite3.Connection:
        """Open the file and see what it is, without changing it."""
        if self._database is not None:
            return self._database
        self._refuse_remote()
        found = os.stat(self._path)
        if not stat.S_ISREG(found.st_mode):
            raise JournalRefused(f"{self._path} is no file: name one")
        if not found.st_size:
            raise JournalRefused(
                f"{self._path} is empty: it is no journal, or one that was cut off. "
                f"Put back a copy, or delete it (with {self._log_path.name}) to begin with an empty journal"
            )
        database = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",
            uri=True,
            isolation_level=None,
            timeout=LOCK_WAIT,
            check_same_thread=False,
        )
        try:
            self._refuse_foreign(database)
            database.executescript(
                f"PRAGMA synchronous = {'FULL' if self._strict else 'NORMAL'};"
                f"PRAGMA wal_autocheckpoint = {LOG_PAGES};"
                f"PRAGMA journal_size_limit = {LOG_BYTES};"
                "PRAGMA secure_delete = OFF;"
            )
            self._state(database)
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            database.close()
            self._close_files()
            raise
        self._identity, self._size = (found.st_dev, found.st_ino), found.st_size
        self._database = database
        return database

    def _refuse_foreign(self, database: sqlite3.Connection) -> None:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise JournalRefused(f"{self._path} is a database of another program: name another file")
        if version != FORMAT:
            raise JournalRefused(
                f"{self._path} was made by another version of taskmesh (form {version}, this one reads "
                f"{FORMAT}): start that version, or name another file"
            )

    def _refuse_remote(self) -> None:
        kind = _file_system(self._path.parent)
        if kind in REMOTE:
            raise JournalRefused(
                f"{self._path} is on {kind}, where SQLite's log does not work and a second hub on another "
                "machine would damage the file: name one on a local disk, or a journal in Redis"
            )

    def _detach(self) -> None:
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            self._database = None
        if self._log >= 0 and self._has_moved():
            self._remove_own_log()
        self._close_files()

    def _close_files(self) -> None:
        """Close what is open beside the database, after it: a file that is closed takes its locks along."""
        for descriptor in (self._file, self._log, self._mark):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._log = self._mark = -1

    def _remove_own_log(self) -> None:
        """Delete the log of a file that is gone: SQLite would play it into another file of that name."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self._log_path), os.fstat(self._log)):
                self._log_path.unlink()

    def close(self) -> None:
        """Close the file; SQLite empties its log if nobody else has it open."""
        self._detach()

    # --- reading ------------------------------------------------------------------------------------------

    def load(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Read the table in its order, and count it by its index."""
        with self._told():
            database = self._attach()
            if not self._epoch:
                self._refuse_missing(database)
            portion: list[tuple[bytes, bytes]] = []
            seen = size = 0
            database.execute("BEGIN")
            try:
                (count,) = database.execute("SELECT count(key) FROM entries").fetchone()
                for key, value, crc in database.execute("SELECT key, value, crc FROM entries ORDER BY id"):
                    if not _is_whole(key, value, crc):
                        raise JournalRefused(self._damaged(f"the entry {key!r} was changed"))
                    if portion and (size + len(value) > PORTION_BYTES or len(portion) == PORTION_ENTRIES):
                        yield portion
                        portion, size = [], 0
                    portion.append((key, value))
                    size += len(value)
                    seen += 1
            finally:
                database.execute("ROLLBACK")
            if seen != count:
                raise JournalRefused(self._damaged(f"{count - seen} of {count} entries are missing"))
        if portion:
            yield portion

    # --- writing ------------------------------------------------------------------------------------------

    def write(self, number: int, changes: Changes) -> None:
        """One transaction."""
        with self._transaction() as database:
            if not self._is_next(database, number):
                return
            if changes.drops:
                database.executemany("DELETE FROM entries WHERE key = ?", ((key,) for key in changes.drops))
            if changes.puts:
                database.executemany(
                    _PUT, ((key, value, _crc(key, value)) for key, value in changes.puts.items())
                )
            database.execute("UPDATE state SET number = ?", (number,))
        self._stored(number)

    def replace(self, number: int, puts: Mapping[bytes, bytes]) -> None:
        """One transaction, however large."""
        with self._transaction() as database:
            if not self._is_next(database, number):
                return
            database.execute("DELETE FROM entries")
            database.executemany(_PUT, ((key, value, _crc(key, value)) for key, value in puts.items()))
            database.execute("UPDATE state SET number = ?", (number,))
        self._stored(number)

    def _stored(self, number: int) -> None:
        """A transaction is in the file, if that is still where it was."""
        self._look()
        self._number = number
        if self._strict:
            self._note()

    def sync(self) -> None:
        """Fsync the log. What is in the file itself SQLite has synced when it moved it there."""
        self._look()
        if not self._strict:
            self._fsync()

    def _note(self) -> None:
        """Write down which transaction is on disk at least, for the next hub to compare."""
        with contextlib.suppress(OSError):
            os.pwrite(self._mark, b"%020d %020d" % (self._identity[1], self._number), 0)

    def _refuse_missing(self, database: sqlite3.Connection) -> None:
        """Refuse a file that has less than was on disk: its log is damaged, or gone."""
        try:
            of, number = map(int, self._mark_path.read_bytes().split())
        except (FileNotFoundError, ValueError):
            return
        last = self._state(database)[2]
        if of == self._identity[1] and number > last:
            raise JournalRefused(
                f"{self._path} ends with transaction {last}, but {number} was on disk: {self._log_path.name} "
                f"is damaged, or was removed. Put back a copy, or delete {self._mark_path} to go on without "
                "what is missing"
            )

    def _fsync(self) -> None:
        try:
            os.fsync(self._log)
        except (
            OSError
        ) as error:  # the kernel has dropped the pages: a second fsync would succeed without them
            self._torn = True
            raise JournalUnavailable(
                f"{self._path} cannot be synced ({error}): look after its disk"
            ) from error
        self._note()

    def check(self) -> None:
        """Compare the epoch, and give back some of the space that nothing uses."""
        self._look()
        with self._told():
            database = self._attach()
            self._last(database)
            (unused,) = database.execute("PRAGMA freelist_count").fetchone()
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            if unused * PAGE > max(SPARE_BYTES, (pages - unused) * PAGE):
                database.executescript(
                    f"PRAGMA incremental_vacuum({SHRINK_PAGES})"
                )  # `execute` frees one page

    def status(self) -> dict[str, object]:
        with self._told():
            database = self._attach()
            (entries,) = database.execute("SELECT count(key) FROM entries").fetchone()
            (unused,) = database.execute("PRAGMA freelist_count").fetchone()
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            epoch, _, number = self._state(database)
            disk_bytes = self._path.stat().st_size + os.fstat(self._log).st_size
        survives = (
            "a loss of power"
            if self._strict
            else "the end of the hub; a loss of power but for the last second"
        )
        return {
            "where": str(self._path),
            "entries": entries,
            "bytes": (pages - unused) * PAGE,
            "unused_bytes": unused * PAGE,
            "disk_bytes": disk_bytes,
            "epoch": epoch,
            "number": number,
            "survives": survives,
        }

    # --- transactions and failures ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._told():
            database = self._attach()
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def _is_next(self, database: sqlite3.Connection, number: int) -> bool:
        """Return False if a transaction is stored already."""
        last = self._last(database)
        if number > last + 1:
            raise JournalRegressed(f"{self._path} ends with transaction {last}, but {number - 1} was written")
        return number == last + 1

    def _last(self, database: sqlite3.Connection) -> int:
        """Return the number of the last transaction, if the journal is still ours."""
        epoch, owner, last = self._state(database)
        if owner == self._owner:
            return last
        if epoch > self._epoch:
            raise JournalSuperseded(
                f"another hub has opened {self._path} (epoch {epoch}, ours is {self._epoch})"
            )
        raise JournalRegressed(
            f"{self._path} is an older one than was written (epoch {epoch}, not {self._epoch})"
        )

    def _state(self, database: sqlite3.Connection) -> tuple[int, str, int]:
        """Return epoch, owner and the number of the last transaction."""
        row = database.execute(_STATE).fetchone()
        is_one = row is not None and isinstance(row[1], str)
        if not is_one or not all(isinstance(one, int) and 0 <= one < _MOST for one in (row[0], row[2])):
            raise JournalRefused(self._damaged("its state is missing or was changed"))
        epoch, owner, number = row
        return epoch, owner, number

    def _look(self) -> None:
        """See that file and log are where they were, and that nobody else has written to the file.

        Raises:
            JournalRegressed: one of them was removed or replaced.
            JournalRefused: the file was cut off or overwritten.
        """
        if self._database is None:
            return
        if self._has_moved():
            raise JournalRegressed(f"{self._path} {_MOVED}")
        with self._told():
            log = self._log_path
            if not log.exists() or not os.path.samestat(log.stat(), os.fstat(self._log)):
                raise JournalRegressed(f"{log} {_MOVED}")
            header, size = os.pread(self._file, _HEADER, 0), os.fstat(self._file).st_size
            said = int.from_bytes(header[_PAGES], "big") * PAGE  # more than there is where a disk was full
            if not header.startswith(_MAGIC) or size < min(self._size, said):
                self._spoilt = True
                raise JournalRefused(self._damaged(_SPOILT))
            self._size = size

    def _has_moved(self) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self._identity

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what SQLite and the system raise into the journal's own errors."""
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            raise self._failure(error) from error
        except PermissionError as error:
            raise JournalRefused(
                f"{self._path} may not be used ({error}): change its owner or mode"
            ) from error
        except FileNotFoundError as error:
            raise JournalRefused(f"there is no journal at {self._path}") from error
        except OSError as error:
            raise JournalUnavailable(f"{self._path}: {error}") from error

    def _failure(self, error: Exception) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return JournalUnavailable(f"the disk below {self._path} is full: make room on it")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return JournalUnavailable(f"another process has {self._path} locked: end it")
        if code == sqlite3.SQLITE_READONLY:
            return JournalUnavailable(
                f"{self._path} cannot be written ({error}): change its owner, mode or mount"
            )
        if code == sqlite3.SQLITE_TOOBIG:
            return JournalRefused(
                f"an entry is larger than SQLite takes (1 GB) for {self._path}: make values smaller"
            )
        if code == sqlite3.SQLITE_NOTADB:
            return JournalRefused(f"{self._path} is no journal: name another file")
        if code == sqlite3.SQLITE_CORRUPT:
            self._spoilt = True
            return JournalRefused(self._damaged(str(error)))
        self._torn = self._torn or code == sqlite3.SQLITE_IOERR
        return JournalUnavailable(f"{self._path}: {error}")

    def _damaged(self, why: str) -> str:
        return (
            f"{self._path} is damaged ({why}); no entry was changed. Put back a copy, or move it away "
            f"(with {self._log_path.name}) to begin with an empty journal, into which a hub that runs writes "
            "all that it has; `sqlite3 FILE .recover` reads what is left"
        )


def _is_whole(key: object, value: object, crc: object) -> bool:
    """Return True if an entry is as it was written: of a damaged page SQLite may read any type, NULL too."""
    return isinstance(key, bytes) and isinstance(value, bytes) and _crc(key, value) == crc


def _crc(key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key))


def _file_system(folder: Path) -> str:
    """Return the type of the file system of a folder, "" if unknown."""
    try:
        device = os.stat(folder).st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    place = f"{os.major(device)}:{os.minor(device)}"
    for mount in mounts:  # ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS ... - TYPE SOURCE OPTIONS
        fields, _, rest = mount.partition(" - ")
        if fields.split()[2] == place:
            return rest.split()[0]
    return ""
