# ruff: noqa: N802 (a test is named after its clause)
"""29/PUBSUB, the PUB socket type."""

from __future__ import annotations

import pytest
import zmq

from taskmesh.sockets import Pub, WrongDirection
from tests.conformance.clauses import CLAUSES
from tests.conformance.coverage import clauses_without_a_test
from tests.conformance.rig import Rig
from tests.conformance.synchrony import heard_by, subscribe, synchronise


def test_PS_01_every_clause_of_the_document_has_a_test() -> None:
    assert clauses_without_a_test("PS") == []
    assert sum(clause.family == "PS" for clause in CLAUSES) == 76


def test_PS_11_pub_ignores_what_subscribers_send(rig: Rig) -> None:
    pub, xsub = rig.ours(Pub), rig.peer("XSUB")
    rig.join(pub, xsub)
    subscribe(xsub, b"")

    xsub.send(b"to the publisher")
    xsub.send_parts([b"in", b"parts"])

    synchronise(pub, xsub)
    assert heard_by(pub, xsub, [b"still works"]) == [b"still works"]
    assert not pub.raw.get(zmq.EVENTS) & zmq.POLLIN


def test_PS_19_pub_shows_no_subscription(rig: Rig) -> None:
    pub, sub = rig.ours(Pub), rig.peer("SUB")
    subscribe(sub, b"a")
    rig.join(pub, sub)
    synchronise(pub, sub)

    assert not pub.raw.get(zmq.EVENTS) & zmq.POLLIN
    with pytest.raises(WrongDirection):
        pub.recv(0)
