"""`taskmesh store`: a journal in a file and in Redis, looked at and compacted, with its hub or without."""

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from taskmesh.cli.application import app
from taskmesh.cli.store import WORDS
from taskmesh.journal import file as file_module
from taskmesh.journal.address import JournalAddress
from taskmesh.journal.file import FileJournal
from taskmesh.journal.port import Changes, JournalStore
from taskmesh.wire.journal import CHUNK, by_kind, key_of
from tests.harness.programs import Programs
from tests.harness.redis_server import RedisServer, serving

pytestmark = pytest.mark.usefixtures("processes")

TCP = "tcp://127.0.0.1:0"
LARGE = 100_000
"""Bytes of an entry that is to be seen on disk."""


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
    from taskmesh.journal.redis import RedisJournal

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


def store(programs: Programs, place: Place, verb: str, *more: str) -> subprocess.CompletedProcess[str]:
    return programs.run("store", verb, "--journal", place.name, *more)


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
    outcome = programs.run("submit", "tests.net.workload:add", "1", "2", "--detach", "--address", address)
    assert outcome.returncode == 0, outcome.stderr


def test_what_a_hub_has_written_is_told_while_it_runs(programs, place, hub):
    for _ in range(2):
        leave_a_task(programs, hub)

    found = told(store(programs, place, "status", "--json"))
    text = store(programs, place, "status").stdout
    checked = store(programs, place, "check")

    assert place.name.removeprefix("redis://") in found["where"]
    assert found["entries"] == sum(found["kinds"].values())
    assert (found["tasks"], found["kinds"]["chunks"], found["damaged"]) == (2, 2, [])
    assert found["bytes"] > 0
    assert found["disk_bytes"] > 0
    assert "2 chunks" in text
    assert "2 tasks that are not over" in text
    assert f"survives:  {found['survives']}" in text
    assert (checked.returncode, "all can be read" in checked.stdout) == (0, True), checked.stderr
    leave_a_task(programs, hub)  # it still has its journal


def test_every_kind_of_entry_has_a_word():
    assert set(WORDS) == set(by_kind({}))


def test_a_strict_hub_s_file_survives_a_loss_of_power(programs, tmp_path):
    place = in_file(tmp_path)
    place.write(Changes())

    assert told(store(programs, place, "status", "--strict", "--json"))["survives"] == "a loss of power"
    assert "last second" in told(store(programs, place, "status", "--json"))["survives"]


def test_entries_that_no_hub_can_read_are_named(programs, place):
    wrong, foreign = key_of(CHUNK, 1), key_of("z", 2)
    place.write(Changes({wrong.encode(): b"nonsense", foreign.encode(): b"", b"\xff": b""}))

    outcome = store(programs, place, "check")
    found = told(store(programs, place, "check", "--json"))
    status = store(programs, place, "status")

    assert outcome.returncode == 1
    assert wrong in outcome.stdout
    assert foreign in outcome.stdout
    assert {each["key"] for each in found["damaged"]} == {wrong, foreign, r"\xff"}
    assert (status.returncode, "3 entries; `taskmesh store check`" in status.stdout) == (0, True)


def test_bytes_that_were_changed_are_found(programs, place):
    place.write(Changes({b"c/1": b"x"}))
    place.spoil()

    outcome = store(programs, place, "check", "--json")

    assert outcome.returncode == 1
    assert "was changed" in told(outcome)["damaged"][0]["why"]


def large_ones_come_and_go(place: Place) -> None:
    keys = [key_of("x", number).encode() for number in range(100)]
    place.write(Changes(dict.fromkeys(keys, bytes(LARGE))), Changes({}, set(keys)))


def test_the_space_of_what_was_dropped_is_given_back(programs, place):
    large_ones_come_and_go(place)

    outcome = store(programs, place, "compact", "--json")

    found = told(outcome)
    assert (outcome.returncode, set(found)) == (0, {"disk_bytes_before", "disk_bytes"})
    assert found["disk_bytes_before"] > 90 * LARGE
    assert found["disk_bytes"] < 5 * LARGE
    if not place.name.startswith("redis:"):
        assert Path(place.name).stat().st_size < 5 * LARGE


def test_a_hub_that_runs_goes_on_while_its_journal_is_compacted(programs, place):
    large_ones_come_and_go(place)
    program = programs.start("hub", "--bind", TCP, "--journal", place.name, "--json")
    address = program.ready()["gateway"]
    leave_a_task(programs, address)

    outcome = store(programs, place, "compact")
    leave_a_task(programs, address)

    assert outcome.returncode == 0, outcome.stderr
    assert told(store(programs, place, "check", "--json"))["tasks"] == 2
    program.end()
    assert not [event for event in program.events("stderr") if event["event"].startswith("journal.")]


def test_a_file_that_is_locked_is_not_compacted(tmp_path, monkeypatch):
    monkeypatch.setattr(file_module, "LOCK_WAIT", 0.1)
    place = in_file(tmp_path)
    large_ones_come_and_go(place)

    with closing(sqlite3.connect(place.name, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        outcome = CliRunner().invoke(app, ["store", "compact", "--journal", place.name])
        other.execute("ROLLBACK")

    assert outcome.exit_code == 1
    assert "the journal cannot be used now" in outcome.stderr
    assert "locked" in outcome.stderr


def test_a_password_comes_from_a_file(programs, tmp_path):
    for server in serving(tmp_path, "--appendonly", "yes", password="right-and-secret"):  # noqa: S106
        url = tmp_path / "url"
        url.write_text(server.full_url)
        url.chmod(0o600)
        empty = programs.run("store", "status", "--journal-file", str(url))
        shown = programs.run("store", "status", "--journal", server.full_url)

    assert (empty.returncode, "there is no journal at" in empty.stderr) == (2, True), empty.stderr
    assert (shown.returncode, "--journal-file FILE" in shown.stderr) == (2, True), shown.stderr


@pytest.mark.parametrize("verb", ["status", "check", "compact"])
def test_refused_with_what_to_do(programs, tmp_path, verb):
    none = programs.run("store", verb)
    nowhere = programs.run("store", verb, "--journal", str(tmp_path / "nowhere"))
    other = tmp_path / "other"
    other.write_text("some text that is no database, as long as one page would be at least" * 20)
    foreign = programs.run("store", verb, "--journal", str(other))
    away = programs.run("store", verb, "--journal", "redis://127.0.0.1:1/0")

    assert (none.returncode, "--journal FILE|URL" in none.stderr) == (2, True), none.stderr
    assert (nowhere.returncode, "there is no journal at" in nowhere.stderr) == (2, True), nowhere.stderr
    assert (foreign.returncode, "is no journal" in foreign.stderr) == (2, True), foreign.stderr
    assert (away.returncode, "cannot be used now" in away.stderr) == (1, True), away.stderr
    assert not (tmp_path / "nowhere").exists()
