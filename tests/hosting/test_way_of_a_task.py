"""The way of a task through an embedded mesh: four messages, none a mere acknowledgement, and few modules."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from taskmesh import Mesh
from taskmesh.hosting.embedded import EmbeddedPort
from taskmesh.hosting.local_pool import LocalHubLink
from taskmesh.hub.embedded_hub import LocalLinks
from tests.hosting.workload import echo

MOST_MODULES = 48
"""Two of them are for whoever asks: how long tasks wait and run (`hub.machine.figures.functions`), and how
the latest have ended (`figures.diagnostics`)."""
SENDERS = (
    EmbeddedPort._send,
    LocalLinks.push,
    LocalLinks.publish,
    LocalLinks.send_client,
    LocalHubLink.send,
    LocalHubLink.beat,
)


class Walk:
    """The modules that were entered, and the messages that were passed on, while it looks."""

    def __init__(self) -> None:
        self.looks = False
        self.modules: set[str] = set()
        self.messages: list[str] = []
        self._senders = {sender.__code__ for sender in SENDERS}

    def entered(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call, as a profiler."""
        module = frame.f_globals.get("__name__", "")
        if self.looks and event == "call" and module.startswith("taskmesh."):
            self.modules.add(module)
            if frame.f_code in self._senders:
                carrier = frame.f_locals.get("action", frame.f_locals.get("message"))
                self.messages.append(type(getattr(carrier, "message", carrier)).__name__)


@pytest.fixture
def walk() -> Iterator[Walk]:
    walk = Walk()
    before = sys.getprofile()
    threading.setprofile(walk.entered)
    sys.setprofile(walk.entered)
    yield walk
    sys.setprofile(before)
    threading.setprofile(None)


def test_a_task_and_its_result_are_four_messages_and_pass_few_modules(walk: Walk):
    trips = []
    with Mesh(workers=1) as mesh:
        for _ in range(200):
            walk.modules, walk.messages = set(), []
            walk.looks = True
            assert mesh.submit(echo, 1).result(20) == 1
            walk.looks = False
            trips.append((len(walk.messages), len(walk.modules), walk.messages))

    _, least, messages = min(trips)  # in others something periodic was due, or this process had to wait
    assert messages == ["Submit", "Tasks", "Results", "Deliver"]
    assert least <= MOST_MODULES
