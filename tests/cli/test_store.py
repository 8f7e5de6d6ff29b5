"""`taskmesh store status`: a journal in a file and in Redis, looked at with its hub or without."""

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskmesh.cli.store import WORDS
from taskmesh.hub.journal.address import JournalAddress
from taskmesh.hub.journal.file import FileJournal
from taskmesh.hub.journal.store import Changes, JournalStore
from taskmesh.messages.journal_entries import CHUNK, by_kind, key_of
from tests.harness.programs import Programs
from tests.harness.redis_server import RedisServer, serving

pytestmark = pytest.mark.usefixtures("processes")

TCP = "tcp://127.0.0.1:0"


class Place:
    """A place for a journal: its `name` for commands; `make` gives a store, `spoil` damages all entries."""

    def __init__(self, name: str, make: Callable[[], JournalStore], spoil: Callable[[], None]) -> None:
        self.name, self.make, self.spoil = name, make, spoil

    def write(self, *transactions: Changes) -> None:
        """Write transactions as a hub does."""
        with closing(self.make()) as store:
            number = store.open().number
            for later, changes in enumerate(transactions, number + 1):
                store.write(later, changes)
            store.sync()


def in_file(folder: Path) -> Place:
    path = folder / "tasks.journal"

    def spoil() -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE entries SET crc = crc + 1")

    return Place(str(path), lambda: FileJournal(path), spoil)


def in_redis(server: RedisServer) -> Place:
    from taskmesh.hub.journal.redis import RedisJournal

    def spoil() -> None:
        with server.client() as client:
            for key in client.hkeys("taskmesh:{journal}:entries"):
                client.hset("taskmesh:{journal}:entries", key, b"\0\0\0\0other")

    return Place(server.url, lambda: RedisJournal(lambda: JournalAddress.of(server.url)), spoil)


@pytest.fixture(params=["file", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        yield in_file(tmp_path)
        return
    for server in serving(tmp_path, "--appendonly", "yes"):
        yield in_redis(server)


def status(programs: Programs, place: Place, *more: str) -> subprocess.CompletedProcess[str]:
    return programs.run("store", "status", "--journal", place.name, *more)


def told(outcome: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


@pytest.fixture
def hub(programs: Programs, place: Place) -> Iterator[str]:
    """A hub with the journal; it ends before its Redis."""
    program = programs.start("hub", "--bind", TCP, "--journal", place.name, "--json")
    yield program.ready()["gateway"]
    program.end()


def leave_a_task(programs: Programs, address: str) -> None:
    """A detached task, which waits for a pool."""
    outcome = programs.run("submit", "tests.hosting.workload:add", "1", "2", "--detach", "--address", address)
    assert outcome.returncode == 0, outcome.stderr


def test_what_a_hub_has_written_is_told_while_it_runs(programs, place, hub):
    for _ in range(2):
        leave_a_task(programs, hub)

    found = told(status(programs, place, "--json"))
    text = status(programs, place).stdout

    assert place.name.removeprefix("redis://") in found["where"]
    assert found["entries"] == sum(found["kinds"].values())
    assert (found["tasks"], found["kinds"]["chunks"]) == (2, 2)
    assert found["bytes"] > 0
    assert found["disk_bytes"] > 0
    assert "2 chunks" in text
    assert "2 tasks that are not over" in text
    assert f"survives:  {found['survives']}" in text
    leave_a_task(programs, hub)  # it still has its journal


def test_every_kind_of_entry_has_a_word():
    assert set(WORDS) == set(by_kind({}))


def test_a_strict_hub_s_file_survives_a_loss_of_power(programs, tmp_path):
    place = in_file(tmp_path)
    place.write(Changes())

    assert told(status(programs, place, "--strict", "--json"))["survives"] == "a loss of power"
    assert "last second" in told(status(programs, place, "--json"))["survives"]


def test_an_entry_that_no_hub_can_read_is_named(programs, place):
    for wrong in (key_of(CHUNK, 1).encode(), key_of("z", 2).encode(), b"\xff"):
        place.write(Changes({wrong: b"nonsense"}))

        outcome = status(programs, place)

        assert (outcome.returncode, wrong.decode(errors="backslashreplace") in outcome.stderr) == (2, True)
        place.write(Changes({}, {wrong}))


def test_bytes_that_were_changed_are_found(programs, place):
    place.write(Changes({b"c/1": b"x"}))
    place.spoil()

    outcome = status(programs, place)

    assert (outcome.returncode, "was changed" in outcome.stderr) == (2, True)


def test_a_password_comes_from_a_file(programs, tmp_path):
    for server in serving(tmp_path, "--appendonly", "yes", password="right-and-secret"):  # noqa: S106
        url = tmp_path / "url"
        url.write_text(server.full_url)
        url.chmod(0o600)
        empty = programs.run("store", "status", "--journal-file", str(url))
        shown = programs.run("store", "status", "--journal", server.full_url)

    assert (empty.returncode, "there is no journal at" in empty.stderr) == (2, True), empty.stderr
    assert (shown.returncode, "--journal-file FILE" in shown.stderr) == (2, True), shown.stderr


def test_refused_with_what_to_do(programs, tmp_path):
    none = programs.run("store", "status")
    nowhere = programs.run("store", "status", "--journal", str(tmp_path / "nowhere"))
    other = tmp_path / "other"
    other.write_text("some text that is no database, as long as one page would be at least" * 20)
    foreign = programs.run("store", "status", "--journal", str(other))
    away = programs.run("store", "status", "--journal", "redis://127.0.0.1:1/0")

    assert (none.returncode, "--journal FILE|URL" in none.stderr) == (2, True), none.stderr
    assert (nowhere.returncode, "there is no journal at" in nowhere.stderr) == (2, True), nowhere.stderr
    assert (foreign.returncode, "is no journal" in foreign.stderr) == (2, True), foreign.stderr
    assert (away.returncode, "cannot be used now" in away.stderr) == (1, True), away.stderr
    assert not (tmp_path / "nowhere").exists()
