"""The journal in Redis: servers that are refused, killed, emptied, frozen, full, promoted."""

import copy
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.ports import free_ports
from taskmesh.hub.journal.address import JournalAddress
from taskmesh.hub.journal.store import Changes, JournalRefused, JournalRegressed, JournalUnavailable
from tests.harness.program import environment
from tests.harness.redis_server import RedisServer, redis_client, serving
from tests.harness.waiting import wait_until
from tests.hub.journal.contract import entries
from tests.hub.journal.transactions import expected, transaction

if TYPE_CHECKING:
    from taskmesh.hub.journal.redis import RedisJournal

DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec")
LARGE = 16 << 10


@pytest.fixture
def durable(tmp_path: Path, processes: None) -> Iterator[RedisServer]:
    """A server that keeps journals."""
    yield from serving(tmp_path, *DURABLE)


@pytest.fixture
def strict(tmp_path: Path, processes: None) -> Iterator[RedisServer]:
    """One that answers when things are on disk."""
    yield from serving(tmp_path, "--appendonly", "yes", "--appendfsync", "always")


def journal(server: RedisServer, strict: bool = False) -> "closing[RedisJournal]":
    return closing(journal_at(lambda: server.url, strict))


def journal_at(url: Callable[[], str], strict: bool = False) -> "RedisJournal":
    """A journal; only tests that have a server come here, so its client is installed."""
    from taskmesh.hub.journal.redis import RedisJournal

    return RedisJournal(lambda: JournalAddress.of(url()), strict)


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Half a second for an answer."""
    redis_client()
    from taskmesh.hub.journal import redis as module

    monkeypatch.setattr(module, "ANSWER", 0.5)


# --- servers that are refused -----------------------------------------------------------------------------


def refusal(server: RedisServer, strict: bool = False) -> str:
    with journal(server, strict) as store:
        with pytest.raises(JournalRefused) as refused:
            store.open()
        with pytest.raises(JournalRefused):
            store.check()
    return str(refused.value)


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"appendonly": "no"}, ["appendonly yes"]),
        ({"maxmemory-policy": "allkeys-lru"}, ["maxmemory-policy noeviction"]),
        ({"appendfsync": "no"}, ["appendfsync everysec"]),
        (
            {"appendonly": "no", "maxmemory-policy": "volatile-ttl", "appendfsync": "no"},
            ["appendonly yes", "maxmemory-policy noeviction", "appendfsync everysec"],
        ),
    ],
)
def test_a_server_that_would_lose_entries_is_refused_with_the_lines_that_it_needs(
    durable: RedisServer, settings: dict[str, str], lines: list[str]
):
    with durable.client() as client:
        for name, value in settings.items():
            client.config_set(name, value)

    told = refusal(durable)
    assert durable.stored() == []

    assert told.splitlines()[1:] == [f"    {line}" for line in lines]
    assert "redis.conf" in told
    with durable.client() as client:
        for line in lines:
            client.config_set(*line.split())
    with journal(durable) as store:
        assert store.open() == (1, 0)


def test_strict_needs_a_server_that_syncs_before_it_answers(durable: RedisServer):
    assert refusal(durable, strict=True).splitlines()[1:] == ["    appendfsync always"]
    with durable.client() as client:
        client.config_set("appendfsync", "always")

    with journal(durable, strict=True) as store:
        store.open()
        assert store.status()["survives"] == "a loss of power"


def test_a_replica_is_refused(durable: RedisServer):
    with durable.client() as client:
        client.replicaof("127.0.0.1", "1")
    assert "name the primary" in refusal(durable)


@pytest.mark.usefixtures("processes")
def test_a_node_of_a_cluster_is_refused(tmp_path: Path):
    bus = ("--cluster-port", str(free_ports(1)))  # else it is the server's own, plus 10,000
    for server in serving(tmp_path, *DURABLE, "--cluster-enabled", "yes", *bus):
        assert "cluster-enabled no" in refusal(server)


def test_an_old_version_is_refused(durable: RedisServer, monkeypatch):
    redis = redis_client()
    asked = redis.Redis.info
    monkeypatch.setattr(redis.Redis, "info", lambda self: asked(self) | {"redis_version": "6.2.14"})

    assert "version 6.2.14: a journal needs Redis 7 or newer" in refusal(durable)


def test_settings_that_change_under_a_hub_are_noticed(durable: RedisServer):
    with journal(durable) as store, durable.client() as client:
        store.open()
        client.config_set("maxmemory-policy", "allkeys-random")
        for look in (store.check, store.sync, lambda: store.rejoin(0)):
            with pytest.raises(JournalRefused, match="maxmemory-policy noeviction"):
                look()

        client.config_set("maxmemory-policy", "noeviction")

        assert store.rejoin(0) == 0
        store.write(1, Changes({b"a": b"1"}))


def test_a_journal_of_another_form_or_none_is_refused(durable: RedisServer):
    with journal(durable) as store:
        for look in (store.status, lambda: list(store.load())):
            with pytest.raises(JournalRefused, match="there is no journal at"):
                look()
            store.close()
    with durable.client() as client:
        client.hset("taskmesh:{journal}:state", mapping={"form": 9, "epoch": 4})
    with journal(durable) as store:
        for look in (store.open, store.status):
            with pytest.raises(JournalRefused, match="form 9"):
                look()
            store.close()
    with durable.client() as client:
        assert client.hgetall("taskmesh:{journal}:state") == {b"form": b"9", b"epoch": b"4"}


@pytest.mark.parametrize("user", ["", ":wrong@"])
def test_a_wrong_password_is_told_with_the_cure_and_never_shown(locked: RedisServer, user: str):
    store = journal_at(lambda: f"redis://{user}127.0.0.1:{locked.port}/0")
    with closing(store), pytest.raises(JournalUnavailable, match="refuses user or password") as told:
        store.open()
    assert "wrong" not in str(told.value)


def test_a_user_with_a_few_commands_is_enough(durable: RedisServer):
    from taskmesh.hub.journal.redis import COMMANDS

    allowed = [f"+{name.lower().replace(' ', '|')}" for name in COMMANDS.replace(" and ", ", ").split(", ")]
    with durable.client() as client:
        client.execute_command("ACL", "SETUSER", "hub", "on", ">pass-word", "~taskmesh:*", *allowed)
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pass-word", "~taskmesh:*", "+info")
    with closing(journal_at(lambda: f"redis://hub:pass-word@127.0.0.1:{durable.port}/1")) as store:
        store.open()
        store.write(1, Changes({b"a": b"1", b"large": bytes(LARGE + 1)}, {b"b"}))
        store.replace(2, {b"a": b"1", b"large": bytes(LARGE + 1)})
        store.write(3, Changes({}, {b"large"}))
        assert store.rejoin(3) == 3
        assert entries(store) == {b"a": b"1"}
        assert store.status()["entries"] == 1
    store = journal_at(lambda: f"redis://poor:pass-word@127.0.0.1:{durable.port}/0")
    with closing(store), pytest.raises(JournalUnavailable, match="allow EVALSHA"):
        store.open()


# --- entries ----------------------------------------------------------------------------------------------


def test_a_value_may_grow_large_and_small_again(durable: RedisServer):
    with journal(durable) as store, durable.client() as client:
        store.open()
        for number, size in enumerate([LARGE, LARGE + 1, 10, 3 * LARGE, 2 * LARGE, 0], 1):
            store.write(number, Changes({b"a": b"x" * size, b"other": bytes(LARGE + 1)}))
            assert entries(store) == {b"a": b"x" * size, b"other": bytes(LARGE + 1)}
            assert client.hlen("taskmesh:{journal}:large") == 1 + (size > LARGE)
        store.write(7, Changes({}, {b"a", b"other"}))

        assert entries(store) == {}
        assert client.keys("*") == [b"taskmesh:{journal}:state"]


@pytest.mark.parametrize("large", [False, True])
def test_an_entry_that_was_changed_by_hand_is_refused(durable: RedisServer, large: bool):
    with journal(durable) as store, durable.client() as client:
        store.open()
        store.write(1, Changes({b"a": b"x" * (2 * LARGE if large else 100)}))
        place = "taskmesh:{journal}:large" if large else "taskmesh:{journal}:entries"
        value = client.hget(place, "a")
        for change in (value[:-1], value[:3], b"y" * len(value), b""):
            client.hset(place, "a", change)
            with pytest.raises(JournalRefused, match="is damaged"):
                list(store.load())
        client.hdel("taskmesh:{journal}:large", "a")
        with pytest.raises(JournalRefused, match="is damaged"):
            list(store.load())


def test_an_entry_takes_less_than_300_bytes_besides_its_content(durable: RedisServer):
    with journal(durable) as store, durable.client() as client:
        store.open()
        store.write(1, Changes({b"first": b""}))
        before = client.info("memory")["used_memory"]
        for number in range(20):
            puts = {b"%020d" % (1000 * number + part): bytes(300) for part in range(1000)}
            store.write(number + 2, Changes(puts))
        taken = client.info("memory")["used_memory"] - before

    assert taken / 20_000 - 320 < 300


def test_a_replacement_that_was_broken_off_leaves_nothing(durable: RedisServer, monkeypatch):
    with journal(durable) as store, durable.client() as client:
        store.open()
        store.write(1, Changes({b"a": b"1"}))
        full = {b"%d" % number: bytes(3 << 20) for number in range(6)}

        def fails(*_: object) -> None:
            raise JournalUnavailable("the link broke")

        for again in (lambda: store.rejoin(1), store.open):
            with monkeypatch.context() as patch:
                patch.setattr("taskmesh.hub.journal.redis._REPLACE", "broken")
                with pytest.raises(JournalUnavailable):
                    store.replace(2, full)
            assert client.hlen("taskmesh:{journal}:new:large") == 6
            assert entries(store) == {b"a": b"1"}

            again()

            assert client.keys("*new*") == []
        store.replace(2, full)
        assert entries(store) == full
        assert client.keys("*new*") == []


def test_transactions_beyond_what_redis_takes_are_refused(durable: RedisServer, monkeypatch):
    monkeypatch.setattr("taskmesh.hub.journal.redis.MOST_BYTES", 1 << 20)
    with journal(durable) as store:
        store.open()
        with pytest.raises(JournalRefused, match="make values smaller"):
            store.write(1, Changes({b"a": bytes(1 << 20)}))
        with pytest.raises(JournalRefused, match="make values smaller"):
            store.replace(1, {b"%d" % number: bytes(1 << 20) for number in range(9)} | {b"a": bytes(2 << 20)})
        store.replace(1, {b"%d" % number: bytes(1 << 20) for number in range(3)})
        assert len(entries(store)) == 3


def test_scripts_that_somebody_has_flushed_are_sent_again(durable: RedisServer):
    with journal(durable) as store, durable.client() as client:
        store.open()
        store.write(1, Changes({b"a": b"1"}))
        client.script_flush()
        store.write(2, Changes({b"a": b"2"}))

        assert entries(store) == {b"a": b"2"}


def test_a_server_without_memory_takes_nothing_and_goes_on_when_it_has_some(durable: RedisServer):
    with journal(durable) as store, durable.client() as client:
        store.open()
        store.write(1, Changes({b"a": b"1", b"b": b"1"}))
        client.config_set("maxmemory", "1")
        with pytest.raises(JournalUnavailable, match="raise its maxmemory"):
            store.write(2, Changes({b"a": b"2"}, {b"b"}))
        assert entries(store) == {b"a": b"1", b"b": b"1"}

        client.config_set("maxmemory", "0")

        assert store.rejoin(1) == 1
        store.write(2, Changes({b"a": b"2"}, {b"b"}))
        assert entries(store) == {b"a": b"2"}


# --- killed, emptied, older -------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("tier", ["everysec", "strict"])
def test_kills_of_hub_and_redis_leave_whole_transactions(request: pytest.FixtureRequest, tier: str):
    server: RedisServer = request.getfixturevalue("strict" if tier == "strict" else "durable")
    chance = random.Random(tier)
    line = [sys.executable, "-m", "tests.hub.journal.writing_program", "redis", server.url, tier]
    for turn in range(8):
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
        ) as process:
            assert process.stdout is not None
            confirmed = [int(process.stdout.readline()) for _ in range(chance.randrange(1, 300))]
            if turn % 2:
                server.kill()
            else:
                process.kill()
            confirmed += [int(word) for word in process.stdout.read().split(b"\n")[:-1]]
        if turn % 2:
            server.start()

        with journal(server, tier == "strict") as store:
            number = store.open().number
            assert number <= confirmed[-1] + 1
            if tier == "strict" or not turn % 2:
                assert number >= confirmed[-1]
            assert entries(store) == expected(number)


@pytest.mark.fault
@pytest.mark.parametrize("instead", ["nothing", "older"])
def test_a_server_that_comes_back_empty_or_older_is_noticed_and_written_again(
    strict: RedisServer, instead: str
):
    files, older = strict.folder / "appendonlydir", strict.folder / "older"
    with journal(strict, strict=True) as store:
        opened = store.open()
        store.write(1, transaction(1))
        shutil.copytree(files, older)
        store.write(2, transaction(2))
        strict.kill()
        with pytest.raises(JournalUnavailable):
            store.write(3, transaction(3))
        with pytest.raises(JournalUnavailable):
            store.rejoin(2)
        shutil.rmtree(files)
        if instead == "older":
            older.rename(files)
        strict.start()

        with pytest.raises(JournalRegressed):
            store.rejoin(2)
        again = store.open(opened.epoch)
        store.replace(again.number + 1, expected(3))

        assert again == (opened.epoch + 1, 1 if instead == "older" else 0)
        assert entries(store) == expected(3)


def test_a_server_that_was_emptied_under_the_hub_is_noticed(durable: RedisServer):
    with journal(durable) as store, durable.client() as client:
        store.open()
        store.write(1, Changes({b"a": b"1"}))
        client.flushall()

        for attempt in (
            lambda: store.write(2, Changes({b"a": b"2"})),
            lambda: store.replace(2, {}),
            store.check,
            store.sync,
        ):
            with pytest.raises(JournalRegressed):
                attempt()
        assert durable.stored() == []


def test_entries_that_are_deleted_under_the_hub_are_noticed_and_written_again(durable: RedisServer):
    with journal(durable) as store, durable.client() as client:
        opened = store.open()
        store.write(1, transaction(1))
        client.delete("taskmesh:{journal}:entries")

        for attempt in (
            lambda: store.write(2, transaction(2)),
            store.check,
            store.sync,
            lambda: store.rejoin(1),
        ):
            with pytest.raises(JournalRegressed):
                attempt()
        again = store.open(opened.epoch)
        store.replace(again.number + 1, expected(2))
        store.write(again.number + 2, transaction(3))
        assert entries(store) == expected(3)


def test_entries_that_are_deleted_while_there_is_no_hub_are_refused_with_the_cure(durable: RedisServer):
    with journal(durable) as store, durable.client() as client:
        store.open()
        store.write(1, transaction(1))
        client.delete("taskmesh:{journal}:entries")
    with journal(durable) as store, pytest.raises(JournalRefused, match="delete the keys taskmesh:"):
        store.open()


@pytest.mark.fault
@pytest.mark.parametrize("behind", [False, True])
def test_a_promoted_replica_is_believed_only_if_it_has_everything(
    durable: RedisServer, tmp_path: Path, behind: bool
):
    url = [durable.url]
    replicas = serving(tmp_path / "replica", *DURABLE)
    with closing(replicas), closing(journal_at(lambda: url[0])) as store:
        replica = next(replicas)
        opened = store.open()
        store.write(1, transaction(1))
        with replica.client() as client, durable.client() as primary:
            primary.config_set("repl-diskless-sync-delay", "0")
            client.replicaof("127.0.0.1", str(durable.port))
            wait_until(lambda: client.hget("taskmesh:{journal}:state", "number") == b"1")
            url[0] = replica.url
            if behind:
                client.replicaof("NO", "ONE")
            store.write(2, transaction(2))
            if not behind:
                wait_until(lambda: client.hget("taskmesh:{journal}:state", "number") == b"2")
                assert "is a replica" in refusal(replica)
                client.replicaof("NO", "ONE")
            durable.kill()

        with pytest.raises(JournalUnavailable):
            store.write(3, transaction(3))
        if behind:
            with pytest.raises(JournalRegressed, match="ends with transaction 1"):
                store.rejoin(2)
            assert store.open(opened.epoch) == (opened.epoch + 1, 1)
            store.replace(2, expected(2))
        else:
            assert store.rejoin(2) == 2
        assert entries(store) == expected(2)


# --- frozen -----------------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.usefixtures("impatient")
def test_a_frozen_server_is_away_and_what_it_still_gets_counts_once(durable: RedisServer):
    with journal(durable) as store:
        store.open()
        store.write(1, Changes({b"a": b"1"}))
        durable.freeze()
        try:
            for attempt in (lambda: store.write(2, Changes({b"a": b"2"})), lambda: store.rejoin(1)):
                began = time.monotonic()
                with pytest.raises(JournalUnavailable):
                    attempt()
                assert time.monotonic() - began < 5
        finally:
            durable.thaw()

        number = store.rejoin(1)
        if number == 1:
            store.write(2, Changes({b"a": b"2"}))
        store.write(3, Changes({b"b": b"3"}))

        assert entries(store) == {b"a": b"2", b"b": b"3"}
        assert store.rejoin(3) == 3


def test_a_write_of_a_link_that_was_replaced_has_no_effect(durable: RedisServer):
    with journal(durable) as store:
        store.open()
        with closing(copy.copy(store)) as old:
            store._client = None  # else it would be closed
            assert store.rejoin(0) == 0

            with pytest.raises(JournalUnavailable, match="replaced"):
                old.write(1, Changes({b"a": b"old"}))
            with pytest.raises(JournalUnavailable, match="replaced"):
                old.replace(1, {b"a": b"old"})

        store.write(1, Changes({b"a": b"new"}))
        assert entries(store) == {b"a": b"new"}


@pytest.mark.fault
def test_a_close_cuts_off_a_call_that_waits(durable: RedisServer):
    with journal(durable) as store:
        store.open()
        durable.freeze()
        try:
            began = time.monotonic()
            closer = threading.Timer(0.1, store.close)
            closer.start()
            with pytest.raises(JournalUnavailable):
                store.write(1, Changes({b"a": b"1"}))
            closer.join()
            assert time.monotonic() - began < 3
        finally:
            durable.thaw()
