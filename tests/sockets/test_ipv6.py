"""IPv6 on all sockets: addresses in brackets, and names that have no other."""

import socket
from collections.abc import Callable
from threading import Event

import pytest

from taskmesh.sockets import Context, Pull, Push, endpoint
from taskmesh.sockets.endpoint import needs_ipv6
from tests.harness.ipv6 import ONLY_WITH_IPV6
from tests.harness.waiting import wait_until


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes names known, with their addresses."""
    known: dict[str, str] = {}

    def look_up(host: str, *_: object, **__: object) -> list[tuple[int, str]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        families = {"4": socket.AF_INET, "6": socket.AF_INET6}
        return [(families[kind], "") for kind in known[host]]

    monkeypatch.setattr(endpoint.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(endpoint, "_only_ipv6", {})
    return lambda host, kinds: known.update({host: kinds})


@ONLY_WITH_IPV6
def test_messages_pass_over_the_loopback_address(context: Context):
    with Pull(context) as pull, Push(context) as push:
        push.connect(pull.bind("tcp://[::1]:*"))
        push.send(b"six")

        assert pull.recv(timeout=10) == b"six"


@pytest.mark.parametrize(
    ("endpoint", "needed"),
    [
        ("tcp://[::1]:5550", True),
        ("tcp://[::]:*", True),
        ("tcp://127.0.0.1:5550", False),
        ("tcp://*:5550", False),
        ("ipc:///tmp/x", False),
        ("tcp://both:5550", False),
        ("tcp://four:5550", False),
        ("tcp://six:5550", True),
        ("tcp://nobody:5550", False),
    ],
)
def test_only_what_cannot_be_reached_otherwise_needs_it(names, endpoint: str, needed: bool):
    for host, kinds in (("both", "64"), ("four", "4"), ("six", "6")):
        names(host, kinds)

    assert needs_ipv6(endpoint) is needed


def test_a_name_that_is_unknown_yet_is_looked_up_again(names):
    assert not needs_ipv6("tcp://late:5550")
    names("late", "6")

    assert needs_ipv6("tcp://late:5550")


def test_a_name_that_nobody_answers_for_holds_its_caller_up_for_a_moment_only(monkeypatch):
    answered, known = Event(), {}
    monkeypatch.setattr(endpoint, "LOOKUP", 0.01)
    monkeypatch.setattr(endpoint, "_only_ipv6", known)

    def look_up(*_: object, **__: object) -> list[tuple[int, str]]:
        answered.wait()
        return [(socket.AF_INET6, "")]

    monkeypatch.setattr(endpoint.socket, "getaddrinfo", look_up)
    assert not needs_ipv6("tcp://slow:5550")
    answered.set()
    wait_until(lambda: known)

    assert needs_ipv6("tcp://slow:5550")
