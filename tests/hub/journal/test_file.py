"""The journal in a file, and what may become of that: killed, cut off, full, moved, somebody else's."""

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskmesh.hub.journal import file as file_module
from taskmesh.hub.journal.file import FileJournal
from taskmesh.hub.journal.store import FORMAT, Changes, JournalRefused, JournalRegressed, JournalUnavailable
from tests.harness.program import environment
from tests.harness.requirement import require
from tests.hub.journal.contract import entries
from tests.hub.journal.transactions import expected, transaction


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.journal"


def written(path: Path, transactions: int) -> None:
    with closing(FileJournal(path)) as store:
        store.open()
        for number in range(1, transactions + 1):
            store.write(number, transaction(number))


def refusal(path: Path) -> str:
    with closing(FileJournal(path)) as store, pytest.raises(JournalRefused) as refused:
        load_all(store)
    return str(refused.value)


def load_all(store: FileJournal) -> tuple[int, dict[bytes, bytes]]:
    number = store.open().number
    return number, entries(store)


def copies(path: Path, folder: Path) -> Path:
    """The state that a kill -9 leaves: the file and its log as they are now, in another folder."""
    folder.mkdir()
    for one in (path, path.with_name(f"{path.name}-wal")):
        shutil.copy(one, folder)
    return folder / path.name


# --- killed -----------------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("tier", ["everysec", "strict"])
def test_kills_at_any_time_leave_whole_transactions_and_all_that_were_confirmed(path: Path, tier: str):
    chance = random.Random(tier)
    line = [sys.executable, "-m", "tests.hub.journal.writing_program", "file", str(path), tier]
    last = 0
    for _ in range(15):
        with subprocess.Popen(line, stdout=subprocess.PIPE, env=environment()) as process:
            assert process.stdout is not None
            confirmed = [int(process.stdout.readline()) for _ in range(chance.randrange(1, 200))]
            process.kill()
            confirmed += [int(word) for word in process.stdout.read().split(b"\n")[:-1]]

        with closing(FileJournal(path)) as store:
            number = store.open().number
            assert confirmed[0] == last + 1
            assert number in (confirmed[-1], confirmed[-1] + 1)
            assert entries(store) == expected(number)
            last = number


# --- cut off ----------------------------------------------------------------------------------------------


def found_in(path: Path) -> int | None:
    """The number of a copy's last transaction; its entries are right. None if it is refused with the cure."""
    refused = ""
    with closing(FileJournal(path)) as store:
        try:
            number, found = load_all(store)
        except JournalRefused as error:
            refused = str(error)
    if refused:
        assert any(cure in refused for cure in ("move it away", "name another file", "delete it"))
        return None
    assert found == (expected(number) if number else {})
    return number


def test_a_log_that_was_cut_off_ends_with_a_whole_transaction(path: Path, tmp_path: Path):
    chance = random.Random(1)
    with closing(FileJournal(path)) as store:
        store.open()
        for number in range(1, 30):
            store.write(number, transaction(number))
        numbers = set()
        for turn in range(40):
            copy = copies(path, tmp_path / str(turn))
            log = copy.with_name(f"{copy.name}-wal")
            os.truncate(log, chance.randrange(log.stat().st_size))
            numbers.add(found_in(copy))

    assert None not in numbers
    assert len(numbers) > 10


@pytest.mark.smoke
def test_pages_of_the_log_that_never_reached_the_disk_take_only_what_came_after_the_sync(
    path: Path, tmp_path: Path
):
    chance = random.Random(2)
    with closing(FileJournal(path)) as store:
        store.open()
        for number in range(1, 20):
            store.write(number, transaction(number))
        store.sync()
        synced = path.with_name(f"{path.name}-wal").stat().st_size
        for number in range(20, 40):
            store.write(number, transaction(number))
        for turn in range(40):
            copy = copies(path, tmp_path / str(turn))
            with copy.with_name(f"{copy.name}-wal").open("r+b") as log:
                for page in range(synced, os.fstat(log.fileno()).st_size, 4096):
                    if chance.random() < 0.2:
                        log.seek(page)
                        log.write(bytes(4096))
            found = found_in(copy)
            assert found is not None
            assert 19 <= found < 40


def test_a_file_that_was_cut_off_is_refused_with_the_cure(path: Path, tmp_path: Path):
    chance = random.Random(3)
    written(path, 40)
    whole = path.read_bytes()
    assert not path.with_name(f"{path.name}-wal").exists()
    copy = tmp_path / "copy"
    for length in [0, 1, 99, 4096, *(chance.randrange(len(whole) - 4096) for _ in range(60))]:
        for leftover in tmp_path.glob("copy*"):
            leftover.unlink()
        copy.write_bytes(whole[:length])

        found = found_in(copy)

        assert found is None, length
        assert copy.exists()


def test_a_file_that_was_cut_off_in_its_last_page_is_refused_or_has_lost_nothing(path: Path, tmp_path: Path):
    """SQLite reads zeros in place of what is cut off there: its entries are NULL, if it has any."""
    written(path, 40)
    whole = path.read_bytes()
    copy = tmp_path / "copy"
    found = set()
    for length in range(len(whole) - 4095, len(whole), 61):
        for leftover in tmp_path.glob("copy*"):
            leftover.unlink()
        copy.write_bytes(whole[:length])

        found.add(found_in(copy))

    assert None in found
    assert found <= {None, 40}, "what is cut off may be free: the layout differs with the owner's random name"


@pytest.mark.parametrize(
    "change", ["key = NULL, value = NULL, crc = NULL", "value = NULL", "value = 'a'", "crc = 0"]
)
def test_an_entry_of_another_type_or_sum_is_refused_with_the_cure(path: Path, change: str):
    """SQLite reads NULL from a row whose bytes have become zeros."""
    written(path, 40)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE entries SET " + change + " WHERE id = (SELECT max(id) FROM entries)")  # noqa: S608

    assert "move it away" in refusal(path)


def test_a_file_that_was_cut_off_below_its_log_has_no_entry_that_was_never_written(
    path: Path, tmp_path: Path
):
    chance = random.Random(4)
    written(path, 40)
    with closing(FileJournal(path)) as store:
        store.open()
        for number in range(41, 44):
            store.write(number, transaction(number))
        size = path.stat().st_size
        found = set()
        for turn in range(60):
            copy = copies(path, tmp_path / str(turn))
            os.truncate(copy, chance.randrange(1, size))
            found.add(found_in(copy))

    assert None in found
    assert found <= {None, 43}


def test_a_value_that_was_changed_on_the_disk_is_refused(path: Path):
    with closing(FileJournal(path)) as store:
        store.open()
        store.write(1, Changes({b"a": b"in the beginning" * 5000}))
    content = path.read_bytes()
    assert content.count(b"in the beginning") > 4000
    path.write_bytes(content.replace(b"in the beginning", b"im the beginning", 1))

    assert "is damaged" in refusal(path)


# --- not a journal ----------------------------------------------------------------------------------------


def test_files_that_are_no_journals_are_refused_and_stay_as_they_are(path: Path, tmp_path: Path):
    for content, reason in [(b"some text" * 1000, "is no journal"), (b"", "is empty")]:
        path.write_bytes(content)
        assert reason in refusal(path)
        assert path.read_bytes() == content
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE a (b)")
    assert "of another program" in refusal(path)
    assert "there is no journal" in looked_at(path.with_name("none"))
    assert "does not exist: make it" in refusal(tmp_path / "no" / "folder")
    assert "is no file: name one" in refusal(tmp_path)


def looked_at(path: Path) -> str:
    with closing(FileJournal(path)) as store, pytest.raises(JournalRefused) as refused:
        store.status()
    return str(refused.value)


def test_one_of_another_version_is_refused(path: Path):
    written(path, 3)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 7")

    assert f"made by another version of taskmesh (form 7, this one reads {FORMAT})" in refusal(path)


def test_a_log_without_its_file_is_refused(path: Path, tmp_path: Path):
    with closing(FileJournal(path)) as store:
        store.open()
        store.write(1, Changes({b"a": b"1"}))
        copy = copies(path, tmp_path / "copy")
    copy.unlink()

    assert "is there without" in refusal(copy)
    assert copy.with_name(f"{copy.name}-wal").exists()


def test_a_file_on_a_file_system_of_several_machines_is_refused(path: Path, monkeypatch):
    assert file_module._file_system(path.parent) not in file_module.REMOTE
    monkeypatch.setattr(file_module, "_file_system", lambda folder: "nfs4")
    written_before = list(path.parent.iterdir())

    assert "is on nfs4" in refusal(path)
    assert list(path.parent.iterdir()) == written_before


def test_nobody_else_can_read_it(path: Path):
    with closing(FileJournal(path)) as store:
        store.open()
        store.write(1, Changes({b"a": b"1"}))
        modes = {one.stat().st_mode & 0o777 for one in path.parent.glob("tasks.journal*")}

    assert modes == {0o600}


# --- trouble while it is open -----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path, processes: None) -> Iterator[Path]:
    """A disk of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    require(os.geteuid() == 0, "root, to mount a small disk")
    subprocess.run(f"mount -t tmpfs -o size=4m none {folder}".split(), check=True, timeout=10)
    try:
        yield folder
    finally:
        subprocess.run(f"umount {folder}".split(), check=True, timeout=10)


@pytest.mark.fault
@pytest.mark.parametrize("strict", [False, True])
def test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room(small_disk: Path, strict: bool):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    with closing(FileJournal(small_disk / "tasks.journal", strict)) as store:
        store.open()
        number = 1
        with contextlib.suppress(JournalUnavailable):
            for number in range(1, 100):
                store.write(number, Changes({b"%d" % number: bytes(50_000)}))
        with pytest.raises(JournalUnavailable, match="is full: make room on it"):
            store.write(number, Changes({b"%d" % number: bytes(50_000)}))
        assert len(entries(store)) == number - 1
        assert store.rejoin(number - 1) == number - 1

        ballast.unlink()

        store.write(number, Changes({b"%d" % number: bytes(50_000)}))
        store.sync()
    with closing(FileJournal(small_disk / "tasks.journal")) as store:
        assert store.open().number == number
        assert len(entries(store)) == number


def test_a_sync_that_failed_counts_for_nothing(path: Path, monkeypatch):
    with closing(FileJournal(path)) as store:
        epoch = store.open().epoch
        store.write(1, Changes({b"a": b"1"}))
        with monkeypatch.context() as patch:

            def fails(descriptor: int) -> None:
                raise OSError(5, "Input/output error")

            patch.setattr(file_module.os, "fsync", fails)
            with pytest.raises(JournalUnavailable, match="cannot be synced"):
                store.sync()

        with pytest.raises(JournalRegressed, match="the disk failed"):
            store.rejoin(1)
        opened = store.open(epoch)
        store.replace(opened.number + 1, {b"a": b"1"})
        store.sync()
        assert entries(store) == {b"a": b"1"}


@pytest.mark.parametrize("instead", ["nothing", "older"])
def test_a_file_that_is_removed_or_replaced_is_noticed_and_written_again(path: Path, instead: str):
    written(path, 3)
    older = path.with_name("older")
    shutil.copy(path, older)
    with closing(FileJournal(path)) as store:
        opened = store.open()
        store.write(4, transaction(4))
        path.unlink()
        if instead == "older":
            older.rename(path)

        for look in (store.check, store.sync):
            with pytest.raises(JournalRegressed, match="removed or replaced"):
                look()
        with pytest.raises(JournalRegressed):
            store.rejoin(4)
        again = store.open(opened.epoch)
        assert again.epoch == opened.epoch + 1
        store.replace(again.number + 1, expected(4))
        store.sync()
    with closing(FileJournal(path)) as store:
        store.open()
        assert entries(store) == expected(4)


def test_a_log_that_is_removed_is_noticed_before_anything_is_confirmed_and_all_is_written_again(path: Path):
    with closing(FileJournal(path)) as store:
        opened = store.open()
        store.write(1, transaction(1))
        path.with_name(f"{path.name}-wal").unlink()

        with pytest.raises(JournalRegressed, match="-wal was removed or replaced"):
            store.write(2, transaction(2))
        for look in (store.check, store.sync):
            with pytest.raises(JournalRegressed, match="-wal was removed or replaced"):
                look()
        again = store.open(opened.epoch)
        store.replace(again.number + 1, expected(2))
        store.write(again.number + 2, transaction(3))
    with closing(FileJournal(path)) as store:
        store.open()
        assert entries(store) == expected(3)


@pytest.mark.parametrize("how", ["emptied", "cut off", "overwritten"])
def test_a_file_that_is_spoilt_under_its_hub_takes_nothing_until_it_is_moved_away(path: Path, how: str):
    with closing(FileJournal(path)) as store:
        store.open()
        store.write(1, Changes({b"%d" % number: bytes(100_000) for number in range(100)}))
    with closing(FileJournal(path)) as store:
        opened = store.open()
        if how == "overwritten":
            with path.open("r+b") as file:
                file.write(bytes(200))
        else:
            os.truncate(path, 0 if how == "emptied" else path.stat().st_size // 2)

        with pytest.raises(JournalRefused, match="is damaged"):
            store.write(2, transaction(2))
        with pytest.raises(JournalRefused, match="is damaged"):
            store.check()
        for _ in range(2):
            with pytest.raises(JournalRefused, match="move it away"):
                store.rejoin(1)
        path.unlink()
        path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
        with pytest.raises(JournalRegressed):
            store.rejoin(1)
        again = store.open(opened.epoch)
        store.replace(again.number + 1, expected(2))
    with closing(FileJournal(path)) as store:
        store.open()
        assert entries(store) == expected(2)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("harm", ["removed", "a bit"])
def test_a_log_that_is_damaged_or_removed_while_there_is_no_hub_is_refused(
    path: Path, tmp_path: Path, strict: bool, harm: str
):
    kept = tmp_path / "kept"
    with closing(FileJournal(path, strict)) as store:
        store.open()
        for number in range(1, 20):
            store.write(number, transaction(number))
        store.sync()
        kept.mkdir()
        log = path.with_name(f"{path.name}-wal")
        os.link(path, kept / "file")  # a hub that is killed empties no log
        shutil.copy(path, kept / "content")
        shutil.copy(log, kept / "log")
    shutil.copyfile(kept / "content", path)
    if harm == "a bit":
        data = bytearray((kept / "log").read_bytes())
        data[len(data) // 3] ^= 8
        log.write_bytes(data)

    assert "-number to go on without what is missing" in refusal(path)
    with closing(FileJournal(path)) as store, pytest.raises(JournalRefused, match="19 was on disk"):
        entries(store)
    path.with_name(f"{path.name}-number").unlink()
    with closing(FileJournal(path)) as store:
        assert store.open().number < 19


@pytest.mark.parametrize(
    "change",
    ["DELETE FROM state", "UPDATE state SET epoch = 9223372036854775807", "UPDATE state SET number = NULL"],
)
def test_a_state_that_is_missing_or_changed_is_refused_with_the_cure(path: Path, change: str):
    written(path, 3)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(change)

    assert "its state is missing or was changed" in refusal(path)


def test_one_that_somebody_has_locked_is_tried_again(path: Path, monkeypatch):
    monkeypatch.setattr(file_module, "LOCK_WAIT", 0.05)
    with closing(FileJournal(path)) as store:
        store.open()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(JournalUnavailable, match="locked"):
                store.write(1, Changes({b"a": b"1"}))
            other.execute("ROLLBACK")
        assert store.rejoin(0) == 0
        store.write(1, Changes({b"a": b"1"}))


def test_a_file_gives_space_back_when_little_of_it_is_used(path: Path, monkeypatch):
    monkeypatch.setattr(file_module, "SPARE_BYTES", 1 << 20)
    with closing(FileJournal(path)) as store:
        store.open()
        store.write(1, Changes({b"%d" % number: bytes(100_000) for number in range(200)}))
        store.write(2, Changes({}, {b"%d" % number for number in range(199)}))

        unused = int(str(store.status()["unused_bytes"]))

        for _ in range(5):
            store.check()

        assert unused > 19_000_000
        assert int(str(store.status()["unused_bytes"])) <= 2 << 20
        assert list(entries(store)) == [b"199"]
