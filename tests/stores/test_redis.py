"""The store over a real redis-server: what it keeps, and what becomes of it when that is away or edited."""

import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from taskmesh.shm.blob import Blob
from taskmesh.stores import writer
from taskmesh.stores.address import StoreAddress
from taskmesh.stores.codec import to_bytes
from taskmesh.stores.writer import WritingStore
from tests.harness.redis_server import RedisServer, free_port, serving
from tests.harness.requirement import require
from tests.harness.waiting import wait_until
from tests.stores.outcomes import (
    becomes,
    failure,
    kept_for,
    link_from,
    loaded,
    opened,
    success,
    view,
)

PREFIX = b"taskmesh:{mesh}:kept:"


def fill(url: str, *entries, seconds: float = 60.0) -> None:
    with opened(url) as store:
        store.load(1, 5.0)
        store.put(kept_for(seconds, *entries))
        becomes(store, stored=len(entries), waiting=0)


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_what_is_stored_is_loaded_by_the_next_one(server: RedisServer, way: str):
    url = server.url if way == "tcp" else f"unix://{server.path}?db=3"
    large = Blob.from_parts([b"pickle", bytes(300_000)])
    fill(url, success("a"), failure("b"), success("large", large))

    found = loaded(url)

    assert found["a"] == success("a")
    assert found["b"] == failure("b")
    (payload,) = found["large"].done[0].payloads
    assert [bytes(part) for part in payload.parts] == [b"pickle", bytes(300_000)]
    if way == "tcp":
        assert all(key.startswith(PREFIX) for key in server.stored())


def test_a_close_flushes_and_ends_soon(server: RedisServer):
    with opened(server.url) as store:
        store.load(1, 5.0)
        store.put(kept_for(60, *(success(f"{n}", bytes(1000)) for n in range(2000))))
        began = time.monotonic()

    assert time.monotonic() - began < 3
    assert len(server.stored()) == 2000


def test_it_expires_when_the_outcome_does_and_what_is_over_is_not_stored(server: RedisServer):
    with opened(server.url) as store:
        store.load(1, 5.0)
        store.put(
            [*kept_for(60, success("long")), *kept_for(0.5, success("short")), *kept_for(-1, success("over"))]
        )
        becomes(store, stored=2, dropped=1)
        with server.client() as client:
            times = sorted(client.pttl(key) for key in server.stored())
        assert 0 < times[0] <= 500
        assert 55_000 < times[-1] <= 60_000
        wait_until(lambda: len(server.stored()) == 1, 5)

    ((until, kept),) = reading(server)
    assert kept.key == "long"
    assert 50 < until - time.monotonic() <= 60


def reading(server: RedisServer, limit: int = 1 << 28):
    with opened(server.url) as store:
        return store.load(limit, 5.0)


def test_what_expires_first_comes_first_and_the_limit_holds(server: RedisServer):
    for seconds in (50, 20, 40, 30):
        fill(server.url, success(f"{seconds}", bytes(10_000)), seconds=seconds)

    assert [kept.key for _, kept in reading(server)] == ["20", "30", "40", "50"]
    assert len(reading(server, 25_000)) == 2


def test_many_keys_of_others_do_not_matter(server: RedisServer):
    with server.client() as client:
        client.mset({f"other:{n}": "x" for n in range(5000)})
    fill(server.url, *(success(f"{n}") for n in range(1200)))

    assert len(loaded(server.url)) == 1200


def test_what_was_edited_by_hand_is_skipped_counted_and_told_once(server: RedisServer):
    fill(server.url, *(success(f"{n}") for n in range(10)))
    keys = server.stored()
    with server.client() as client:
        value = client.get(keys[0])
        for number, change in enumerate(
            [value[:30], b"", b"\x80\x05cos\nsystem\n(S'true'\ntR.", value[:3] + b"\x09" + value[4:]]
        ):
            client.set(keys[number], change, keepttl=True)
        client.delete(keys[4])
        client.lpush(keys[4], "a list")
        client.persist(keys[5])
        client.set(keys[6], client.get(keys[7]), keepttl=True)  # another task's

    with opened(server.url) as store:
        found = store.load(1 << 28, 5.0)
        seen, news = store.status()

    assert len(found) == 3
    assert (seen["skipped"], seen["loaded"], seen["state"]) == (7, 3, "connected")
    status = [fields for kind, fields in news if kind == "store.skipped"]
    assert len(status) == 1
    assert status[0]["entries"] == 7
    assert "taskmesh:{mesh}:kept:" in status[0]["why"]
    assert len(server.stored()) == 10, "nothing of it is deleted: another version may be able to read it"


def test_a_value_of_hundreds_of_megabytes_is_not_even_read(server: RedisServer):
    fill(server.url, success("a"))
    with server.client() as client:
        client.setrange(PREFIX + b"0" * 40, 300 << 20, b"x")
        client.pexpire(PREFIX + b"0" * 40, 60_000)

    assert list(loaded(server.url)) == ["a"]


@pytest.mark.fault
def test_a_server_that_is_killed_and_comes_back_gets_what_waited(server: RedisServer):
    with opened(server.url) as store:
        store.load(1, 5.0)
        store.put(kept_for(60, success("before")))
        becomes(store, stored=1)

        server.kill()
        store.put(kept_for(60, success("meanwhile")))
        away = becomes(store, state="away", waiting=1)
        assert "refused" in str(away["why"])
        server.start()

        becomes(store, state="connected", stored=2, waiting=0)

    assert list(loaded(server.url)) == ["meanwhile"]  # this server saves nothing on disk


@pytest.mark.fault
def test_an_idle_store_notices_that_its_server_is_gone(server: RedisServer):
    with opened(server.url) as store:
        store.load(1, 5.0)
        server.kill()
        becomes(store, state="away")
        server.start()
        becomes(store, state="connected")
        kinds = [kind for kind, _ in store.status()[1]]

    assert len(kinds) < 6


@pytest.mark.fault
def test_a_frozen_server_holds_nobody_up_and_gets_everything_later(server: RedisServer):
    with opened(server.url) as store:
        store.load(1, 5.0)
        server.freeze()
        try:
            began = time.monotonic()
            for number in range(100):
                store.put(kept_for(60, success(f"{number}", bytes(1000))))
            assert time.monotonic() - began < 0.5
            becomes(store, state="away", timeout=12)
            assert view(store)["waiting"] == 100
        finally:
            server.thaw()

        becomes(store, state="connected", stored=100, waiting=0, dropped=0)

    assert len(loaded(server.url)) == 100


@pytest.mark.fault
def test_a_server_frozen_at_the_start_is_waited_for_no_longer_than_said(server: RedisServer):
    fill(server.url, success("a"))
    server.freeze()
    try:
        with opened(server.url) as store:
            began = time.monotonic()
            assert store.load(1 << 28, 1.0) == []
            assert 1.0 <= time.monotonic() - began < 2.0
            (status,) = [fields for kind, fields in store.status()[1] if kind == "store.not_loaded"]
            assert status["seconds"] == 1.0
            store.put(kept_for(60, success("b")))
            server.thaw()
            becomes(store, state="connected", stored=1)
    finally:
        server.thaw()

    assert sorted(loaded(server.url)) == ["a", "b"]


def test_a_server_that_starts_with_the_hub_is_waited_for(server: RedisServer):
    server.kill()
    starter = threading.Timer(0.5, server.start)
    with opened(server.url) as store:
        starter.start()
        began = time.monotonic()
        assert store.load(1 << 28, 10.0) == []
        assert 0.4 < time.monotonic() - began < 5
        starter.join()
        seen, news = store.status()

    assert seen["state"] == "connected"
    assert [kind for kind, _ in news] == ["store.away", "store.connected"]


def test_a_full_queue_drops_the_oldest_and_counts_them(server: RedisServer):
    server.kill()
    with opened(server.url, limit=50_000) as store:
        store.load(1, 0.01)
        for number in range(100):
            store.put(kept_for(60, success(f"{number}", bytes(1000))))
        seen = view(store)
        assert seen["waiting_bytes"] <= 50_000
        assert seen["dropped"] == 100 - seen["waiting"]
        assert 30 < seen["waiting"] < 50
        server.start()
        becomes(store, stored=seen["waiting"], waiting=0)

    assert "99" in loaded(server.url)
    assert "0" not in loaded(server.url)


def test_a_server_without_memory_refuses_and_that_is_told_with_the_cure(server: RedisServer):
    with server.client() as client:
        client.config_set("maxmemory", "1")
        with opened(server.url) as store:
            store.load(1, 5.0)
            store.put(kept_for(60, success("a")))
            news = wait_until(lambda: [one for one in store.status()[1] if one[0] == "store.refused"], 5)
            assert "raise its maxmemory" in str(news)
            becomes(store, dropped=1, waiting=0)
            client.config_set("maxmemory", "0")
            store.put(kept_for(60, success("b")))
            becomes(store, stored=1)

    assert list(loaded(server.url)) == ["b"]


def test_a_replica_is_told_with_the_cure_and_gets_it_when_it_is_the_primary(server: RedisServer):
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        with opened(server.url) as store:
            store.load(1, 5.0)
            store.put(kept_for(60, success("a")))
            assert "name the primary" in str(becomes(store, state="away")["why"])
            client.replicaof("NO", "ONE")
            becomes(store, state="connected", stored=1)


@pytest.mark.parametrize(
    ("user", "cure"), [("", "it asks for a password"), (":wrong@", "it refuses user or password")]
)
def test_a_wrong_password_is_told_with_the_cure(locked: RedisServer, user: str, cure: str):
    with opened(f"redis://{user}127.0.0.1:{locked.port}/0") as store:
        store.load(1, 0.5)
        store.put(kept_for(60, success("a")))
        seen, news = store.status()

    assert cure in str(seen["why"])
    assert "wrong" not in str((seen, news))


def test_the_right_password_may_come_later(locked: RedisServer):
    current = [locked.url]
    store = WritingStore(link_from(lambda: StoreAddress.of(current[0])), "shown")
    try:
        store.load(1, 0.3)
        store.put(kept_for(60, success("a")))
        becomes(store, state="away")
        current[0] = locked.full_url
        becomes(store, state="connected", stored=1)
    finally:
        store.close(2.0)


def test_a_user_with_a_few_commands_is_enough(server: RedisServer):
    commands = ["+scan", "+strlen", "+pttl", "+mget", "+set", "+ping", "+select"]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "mesh", "on", ">pass-word", "~taskmesh:*", *commands)
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pass-word", "~taskmesh:*", "+ping", "+scan")
    url = f"redis://mesh:pass-word@127.0.0.1:{server.port}/1"
    fill(url, success("a"))

    assert list(loaded(url)) == ["a"]
    with opened(f"redis://poor:pass-word@127.0.0.1:{server.port}/0") as store:
        store.load(1, 5.0)
        store.put(kept_for(60, success("a")))
        assert "allow SCAN, STRLEN" in str(becomes(store, state="away")["why"])


def test_a_batch_that_breaks_the_link_again_and_again_is_given_up(server: RedisServer, monkeypatch):
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.01)
    with server.client() as client:
        client.config_set("client-query-buffer-limit", "1mb")
        with opened(server.url) as store:
            store.load(1, 5.0)
            store.put(kept_for(60, success("huge", bytes(3 << 20))))
            becomes(store, dropped=1, waiting=0)
            store.put(kept_for(60, success("small")))
            becomes(store, state="connected", stored=1)


def test_bytes_in_redis_are_those_of_the_wire_form(server: RedisServer):
    fill(server.url, success("a"))

    with server.client() as client:
        assert client.get(server.stored()[0]) == to_bytes(success("a"))


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A certificate of 127.0.0.1, signed by itself, and its key."""
    openssl = shutil.which("openssl")
    require(openssl, "openssl (apt install openssl)")
    files = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    made = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [str(openssl), *made.split(), "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return files


@pytest.mark.usefixtures("processes")
def test_over_tls(tmp_path: Path, certificate: tuple[str, str]):
    public, key = certificate
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", public, "--tls-key-file", key]
    for _ in serving(tmp_path, *options, "--tls-ca-cert-file", public, "--tls-auth-clients", "no"):
        url = f"rediss://127.0.0.1:{port}/0"
        fill(f"{url}?ssl_ca_certs={public}", success("a"))

        assert list(loaded(f"{url}?ssl_ca_certs={public}")) == ["a"]
        with opened(url) as store:
            assert store.load(1 << 28, 0.5) == []
            assert "certificate verify failed" in str(view(store)["why"])
