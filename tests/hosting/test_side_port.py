"""The side port beside a loop that turns, or does not: who is answered, refused, or cut off."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskmesh.config import load
from taskmesh.errors import ConfigError, InsecureBind
from taskmesh.http import server as server_module
from taskmesh.http import side_port as side_port_module
from taskmesh.http.settings import side_settings
from taskmesh.http.side_port import LoopRequests, side_port
from taskmesh.system.loop import Loop
from tests.harness.side_port import ask, bearer
from tests.harness.waiting import wait_until

TOKEN = "0123456789abcdef" * 2
ANSWERS = {
    "GET /readyz": lambda: (True, "ready"),
    "GET /startupz": lambda: (False, "not yet"),
    "GET /v1/queues": lambda: {"queues": {}},
}


class Place:
    """A side port and the loop that it asks."""

    def __init__(self, loop: Loop, requests: LoopRequests, end: Callable[[], None]) -> None:
        self.loop = loop
        self.requests = requests
        self.end = end

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.requests.address.removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        return ask(self.requests.address + path, method, **headers)


@pytest.fixture
def place_of() -> Iterator[Callable[..., Place]]:
    """Make a side port whose loop turns in this process's thread of its own."""
    ends: list[Callable[[], None]] = []

    def make(*, turning: bool = True, **settings: object) -> Place:
        loop = Loop()
        config = load({"program": {"http": "127.0.0.1:0", **settings}}, environ={})
        opened = side_port(config, loop, lambda _: None)
        requests = opened.__enter__()
        assert requests is not None
        requests.serve(ANSWERS)
        ended = threading.Event()

        def turn() -> None:
            while not ended.is_set():
                loop.turn()

        thread = threading.Thread(target=turn)

        def end() -> None:
            if not ended.is_set():
                ended.set()
                if turning:
                    thread.join(5)
                opened.__exit__(None, None, None)

        ends.append(end)
        if turning:
            thread.start()
        return Place(loop, requests, end)

    yield make
    for end in ends:
        end()


def test_probes_say_what_the_loop_says(place_of):
    place = place_of()

    assert place.ask("/livez") == (200, "live\n")
    assert place.ask("/readyz") == (200, "ready\n")
    assert place.ask("/startupz") == (503, "not yet\n")
    assert place.ask("/metrics")[0] == 404
    assert place.ask("/drain", "POST")[0] == 404
    assert place.ask("/livez", "HEAD") == (200, "")


def test_a_queue_that_is_asked_for_is_there(place_of):
    status, text = place_of().ask("/v1/queues?queue=gpu&queue=a%20b")

    assert status == 200
    assert json.loads(text)["queues"] == {
        name: {"depth": 0, "running": 0, "pools": 0, "slots": 0} for name in ("gpu", "a b")
    }


def test_a_loop_that_stands_is_not_live_and_answers_nothing(place_of, monkeypatch):
    monkeypatch.setattr(side_port_module, "STALE", 0.2)
    monkeypatch.setattr(side_port_module, "PATIENCE", 0.1)
    place = place_of(turning=False)

    wait_until(lambda: place.ask("/livez")[0] == 503)

    assert "has not turned for" in place.ask("/livez")[1]
    status, text = place.ask("/readyz")
    assert (status, "has not come by" in text) == (503, True)
    wait_until(lambda: (place.loop.turn(), place.ask("/livez")[0]) == (None, 200))


def test_an_answer_that_fails_is_503_and_the_loop_goes_on(place_of, monkeypatch):
    monkeypatch.setitem(ANSWERS, "GET /metrics", lambda: int("many"))
    place = place_of()

    assert place.ask("/metrics") == (503, "invalid literal for int() with base 10: 'many'\n")
    assert place.ask("/readyz")[0] == 200


def test_with_a_token_all_but_probes_need_it(place_of, tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    place = place_of(http_token_file=str(file))

    assert place.ask("/readyz")[0] == 200
    assert place.ask("/v1/queues")[0] == 401
    assert place.ask("/v1/queues", **bearer("wrong"))[0] == 401
    assert place.ask("/v1/queues", Authorization=f"Basic {TOKEN}")[0] == 401
    assert place.ask("/drain", "POST")[0] == 401
    assert place.ask("/v1/queues", **bearer(TOKEN))[0] == 200
    file.write_text(TOKEN[::-1])
    assert place.ask("/v1/queues", **bearer(TOKEN))[0] == 401
    assert place.ask("/v1/queues", **bearer(TOKEN[::-1]))[0] == 200
    file.unlink()
    assert place.ask("/v1/queues", **bearer(TOKEN))[0] == 401


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Host": "evil.example:80"}]
)
def test_without_a_token_a_browser_s_page_is_refused(place_of, headers):
    place = place_of()

    assert place.ask("/v1/queues", **headers)[0] == 403
    assert place.ask("/drain", "POST", **headers)[0] == 403
    assert place.ask("/livez", **headers)[0] == 200
    assert place.ask("/v1/queues", Host="localhost:1")[0] == 200
    assert place.ask("/v1/queues", Host="[::1]")[0] == 200


def test_slow_connections_keep_nobody_out_and_are_cut(place_of, monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST", 1.0)
    monkeypatch.setattr(server_module, "CONNECTIONS", 4)
    place = place_of()
    slow = [socket.create_connection(place.address, timeout=5) for _ in range(20)]
    try:
        begin = time.monotonic()
        for connection in slow:
            connection.sendall(b"GET /livez")
        for _ in range(5):
            assert place.ask("/livez")[0] == 200
        assert time.monotonic() - begin < 1.0
        assert {connection.recv(100) for connection in slow} == {b""}
    finally:
        for connection in slow:
            connection.close()


def test_a_burst_cuts_as_many_as_there_are_too_many_each_once(place_of, monkeypatch):
    cuts = []
    monkeypatch.setattr(server_module, "CONNECTIONS", 4)
    monkeypatch.setattr(server_module, "cut", cuts.append)  # their threads take no notice, for a while
    place = place_of()
    slow = [socket.create_connection(place.address, timeout=5) for _ in range(12)]
    try:
        wait_until(lambda: len(cuts) >= 8)
        assert [cut.getpeername() for cut in cuts] == [connection.getsockname() for connection in slow[:8]]
    finally:
        for connection in slow:
            connection.close()


def test_a_connection_that_got_no_thread_takes_no_place(place_of, monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS", 1)
    place = place_of()
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", lambda _: int("no thread to be had"))
        with socket.create_connection(place.address, timeout=5) as unserved:
            assert unserved.recv(1) == b""

    with (
        socket.create_connection(place.address, timeout=2) as slow,
        socket.create_connection(place.address, timeout=2),
    ):
        assert slow.recv(1) == b""  # long before its time is up


def test_at_the_end_who_waits_is_answered_and_who_is_silent_is_cut(place_of, monkeypatch):
    monkeypatch.setattr(server_module, "LAST_ANSWERS", 60.0)
    place = place_of(turning=False)
    with (
        socket.create_connection(place.address, timeout=5) as silent,
        ThreadPoolExecutor(1) as asking,
    ):
        answer = asking.submit(place.ask, "/readyz")
        wait_until(lambda: place.requests.pending)
        begin = time.monotonic()
        place.end()

        assert answer.result(5) == (503, "this program is ending\n")
        assert silent.recv(1) == b""
        assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\0\0\0",
        b"GET\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\n\r\n",
        b"DELETE /livez HTTP/1.0\r\n\r\n",
        b"GET /v1/queues?" + b"queue=a&" * 500 + b" HTTP/1.0\r\n\r\n",
        b"GET /livez HTTP/1.0\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"POST /drain HTTP/1.0\r\nContent-Length: nonsense\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.0\r\n\r\n",
    ],
)
def test_nonsense_is_refused_and_the_next_one_served(place_of, sent):
    place = place_of()
    with socket.create_connection(place.address, timeout=5) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        try:
            answer = connection.recv(1000)
        except ConnectionResetError:
            answer = b""

    assert not answer.startswith((b"HTTP/1.0 200", b"HTTP/1.0 202", b"HTTP/1.0 500"))
    assert place.ask("/livez")[0] == 200


def test_no_setting_is_no_side_port():
    assert side_settings(load({}, environ={})) is None


@pytest.mark.parametrize(
    "address", ["5580", "localhost", "127.0.0.1:", "host:port", "http://127.0.0.1:1", "::1:1"]
)
def test_what_is_no_address_is_told_with_the_form(address):
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        side_settings(load({"program": {"http": address}}, environ={}))


@pytest.mark.parametrize("address", ["0.0.0.0:5580", "[::]:5580", "192.0.2.7:5580", "example.invalid:5580"])
def test_beyond_loopback_a_token_is_required(address, tmp_path):
    with pytest.raises(InsecureBind, match="--http-token-file"):
        side_settings(load({"program": {"http": address}}, environ={}))

    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    settings = side_settings(load({"program": {"http": address, "http_token_file": str(file)}}, environ={}))
    assert settings is not None
    assert settings.host in address


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (TOKEN, 0o644, "chmod 600"),
        (TOKEN, 0o620, "chmod 600"),
        ("short", 0o600, "openssl rand"),
        ("two words of some length", 0o600, "one word"),
        ("", 0o600, "openssl rand"),
        ("\u00e4" * 20, 0o600, "cannot be read"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_told_with_the_cure(tmp_path, content, mode, complaint):
    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    file.chmod(mode)

    with pytest.raises(ConfigError, match=complaint):
        side_settings(load({"program": {"http": "127.0.0.1:0", "http_token_file": str(file)}}, environ={}))


def test_a_token_file_that_is_not_there():
    with pytest.raises(ConfigError, match="cannot be read"):
        side_settings(load({"program": {"http": "127.0.0.1:0", "http_token_file": "no/such"}}, environ={}))


def test_an_address_that_is_taken_is_refused(place_of):
    host, port = place_of().address

    with pytest.raises(ConfigError, match="choose another --http"):
        place_of(http=f"{host}:{port}")
