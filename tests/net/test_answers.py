"""How the embedded mesh waits for a slot's answer: it polls for a moment where that has paid before."""

from types import SimpleNamespace

import pytest

from taskmesh.config import Config
from taskmesh.core.slots import Slot, SlotState
from taskmesh.net.embedded import EmbeddedPort


class Answers:
    """In place of BusyPoll: `comes` says whether the answer comes while it is polled."""

    def __init__(self):
        self.comes = True
        self.polled = 0
        self.waits = []

    def wait(self):
        self.polled += 1
        return self.comes

    def waited(self, seconds):
        self.waits.append(seconds)


@pytest.fixture
def port():
    port = EmbeddedPort(SimpleNamespace(), Config(), SimpleNamespace())
    port._shell = SimpleNamespace(pending=False)
    port._pool = SimpleNamespace(slots={number: Slot(number) for number in range(2)})
    for slot in port._pool.slots.values():
        slot.state = SlotState.UP
    port._answers = Answers()
    return port


def test_with_nothing_in_the_slots_it_goes_to_sleep(port):
    assert port._about_to_block() > 0
    port._blocked()

    assert not port._answers.polled
    assert not port._answers.waits


def test_an_answer_that_comes_at_once_is_not_slept_for(port):
    port._pool.slots[0].count = 1

    assert port._about_to_block() == 0
    port._blocked()
    assert port._answers.polled == 1
    assert not port._answers.waits, "polling paid: that is no news"


def test_a_new_task_is_still_told_of_meanwhile(port):
    port._pool.slots[0].count = 1
    port._about_to_block()

    assert port.sleeping


def test_how_long_it_slept_for_one_is_told(port):
    port._pool.slots[1].count = 1
    port._answers.comes = False

    assert port._about_to_block() > 0
    port._blocked()
    assert len(port._answers.waits) == 1


def test_what_is_queued_already_is_not_polled_beside(port):
    port._pool.slots[0].count = 1
    port._shell.pending = True

    assert port._about_to_block() == 0
    assert not port._answers.polled
