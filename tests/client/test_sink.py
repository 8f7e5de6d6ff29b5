"""A consumer as a program sees it: which outcomes it is given, and which numbers it acknowledges."""

import math

import pytest

from taskmesh.client.sink import Sink
from taskmesh.messages.mesh_messages import SinkDeliver
from taskmesh.messages.runs import PICKLE, DoneRun


class Port:
    """A client and its port: they note that something was acknowledged."""

    closed = False
    driver = None
    result_codec = PICKLE

    def __init__(self) -> None:
        self.acked = 0

    def open(self) -> "Port":
        return self

    def open_sink(self, name: str, credit: int, intake: object) -> None:
        assert (name, credit) == ("s", 100)

    def sink_acked(self, name: str) -> None:
        self.acked += 1


def opened() -> Sink:
    return Sink(Port(), "s", 100, "manual").__enter__()


def deliver(sink: Sink, generation: int, *seqs: int) -> None:
    done = [DoneRun(1, 7, 1, "p/0", [seq], [b"r"], 0.1) for seq in seqs]
    sink.renew(generation, math.inf)
    sink.put(SinkDeliver("s", generation, 1, done, ["f"] * len(done)))


def test_what_was_acknowledged_in_vain_is_acknowledged_when_it_comes_again():
    sink = opened()
    deliver(sink, 1, 1)
    sink.ack(sink.get(0))
    assert sink.take_acked() == [(7, 1)]

    deliver(sink, 2, 1, 2)

    assert sink.take_acked() == [(7, 1)]
    assert sink.get(0).task == (7, 2)


def test_what_is_in_the_program_s_hands_is_not_given_out_again():
    sink = opened()
    deliver(sink, 1, 1)
    first = sink.get(0)
    deliver(sink, 2, 1)
    with pytest.raises(TimeoutError):
        sink.get(0)

    sink.ack(first)
    sink.ack(first)

    assert sink.take_acked() == [(7, 1)]


def test_what_others_may_have_is_not_given_out():
    """It stood still for long: the hub has taken back what was here, and another has acknowledged it."""
    sink = opened()
    sink._clock = lambda: now
    deliver(sink, 1, 1, 2)
    now = 5.0
    sink.renew(1, 5.0)
    with pytest.raises(TimeoutError):
        sink.get(0)
    sink.renew(1, 7.5)
    assert sink.get(0).task == (7, 1)

    sink.renew(2, 7.5)
    with pytest.raises(TimeoutError):
        sink.get(0)
