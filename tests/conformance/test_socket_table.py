# ruff: noqa: N802 (a test is named after its clause)
"""The table of socket types: routing and what happens at the high-water mark, for each type."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
import zmq

from taskmesh.sockets import (
    Dealer,
    NoPeerWithinTimeout,
    Pair,
    PeerUnreachable,
    Push,
    Rep,
    Req,
    Router,
    WrongTurn,
)
from tests.conformance.clauses import CLAUSES
from tests.conformance.coverage import clauses_without_a_test, each
from tests.conformance.rig import (
    LARGE,
    MOST_HELD,
    PATIENCE_S,
    TINY,
    Rig,
    assert_taken_in_turn,
    fill,
    numbers,
    receive,
)
from tests.harness.waiting import wait_until


@pytest.mark.clauses("PIPE-01", "SG-01", "PS-01")
def test_every_clause_has_a_test() -> None:
    assert clauses_without_a_test() == []
    counts = Counter(clause.family for clause in CLAUSES)
    assert counts == {"PIPE": 28, "SG": 37, "PS": 76, "TBL": 9, "PAIRS": 1}
    assert len({clause.id for clause in CLAUSES}) == sum(counts.values())


def test_TBL_REQ_adds_and_removes_the_empty_part(rig: Rig) -> None:
    req, router = rig.ours(Req), rig.peer("ROUTER")
    rig.join(req, router)

    req.send_parts([b"question", b"more"], timeout=PATIENCE_S)
    identity, *request = router.recv_parts(PATIENCE_S)
    assert request == [b"", b"question", b"more"]
    router.send_parts([identity, b"", b"answer"])

    assert req.recv_parts(PATIENCE_S) == [b"answer"]


def test_TBL_REQ_alternates_and_goes_round_its_peers(rig: Rig) -> None:
    req, reps = rig.ours(Req), rig.peers(2, "REP")
    rig.join(req, *reps)

    asked = []
    for turn in range(4):
        with pytest.raises(WrongTurn):
            req.recv(0)
        req.send(b"%d" % turn, timeout=PATIENCE_S)
        with pytest.raises(WrongTurn, match="other one's turn"):
            req.send(b"again")
        rep = wait_until(lambda: next((each for each in reps if each.raw.poll(0)), None), PATIENCE_S)
        asked.append(rep)
        assert rep.recv(PATIENCE_S) == b"%d" % turn
        rep.send(b"answer %d" % turn)
        assert req.recv(PATIENCE_S) == b"answer %d" % turn
    assert asked[0] is asked[2] is not asked[1] is asked[3]


def test_TBL_REQ_waits_when_no_peer_is_there(rig: Rig) -> None:
    req = rig.ours(Req)
    req.bind(rig.address())

    with pytest.raises(NoPeerWithinTimeout):
        req.send(b"question", timeout=0.05)
    rep = rig.peer("REP")
    rig.join(req, rep)
    req.send(b"question", timeout=PATIENCE_S)

    assert rep.recv(PATIENCE_S) == b"question"


def test_TBL_REP_keeps_the_parts_up_to_the_empty_one(rig: Rig) -> None:
    rep, dealer = rig.ours(Rep), rig.peer("DEALER")
    rig.join(rep, dealer)

    with pytest.raises(WrongTurn):
        rep.send(b"unasked")
    dealer.send_parts([b"way", b"back", b"", b"question"])
    assert rep.recv_parts(PATIENCE_S) == [b"question"]
    rep.send(b"answer")

    assert dealer.recv_parts(PATIENCE_S) == [b"way", b"back", b"", b"answer"]


def test_TBL_REP_receives_fairly_and_answers_who_asked(rig: Rig) -> None:
    rep, dealers = rig.ours(Rep), rig.peers(3, "DEALER")
    rig.join(rep, *dealers)
    for name, dealer in enumerate(dealers):
        for _ in range(4):
            dealer.send_parts([b"", b"%d" % name])

    for _ in range(12):
        rep.send(rep.recv(PATIENCE_S))

    for name, dealer in enumerate(dealers):
        assert [dealer.recv_parts(PATIENCE_S) for _ in range(4)] == [[b"", b"%d" % name]] * 4


def test_TBL_REP_drops_the_answer_to_a_peer_that_is_gone(rig: Rig) -> None:
    rep, asker = rig.ours(Rep), rig.peer("DEALER")
    rig.join(rep, asker)
    asker.send_parts([b"", b"question"])
    assert rep.recv(PATIENCE_S) == b"question"
    if rig.is_network:
        rig.lose(rep, asker)
    else:
        asker.close()  # over inproc a REP lets go of it only after its answer

    rep.send(b"to nobody")

    other = rig.peer("REQ")
    rig.join(rep, other)
    other.send(b"next")
    assert rep.recv(PATIENCE_S) == b"next"


def test_TBL_DEALER_goes_round_its_peers_and_receives_fairly(rig: Rig) -> None:
    dealer, peers = rig.ours(Dealer), rig.peers(3, "DEALER")
    rig.join(dealer, *peers)

    for message in numbers(9):
        dealer.send_parts([message, b"", b"kept"], timeout=PATIENCE_S)
    for peer in peers:
        received = [peer.recv_parts(PATIENCE_S) for _ in range(3)]
        assert [parts[1:] for parts in received] == [[b"", b"kept"]] * 3
        mine = [int(parts[0]) for parts in received]
        assert [mine[1] - mine[0], mine[2] - mine[1]] == [3, 3]
    for name, peer in enumerate(peers):
        for _ in range(104 if name == 0 else 4):
            peer.send(b"%d" % name)
    rig.leave(dealer, *peers)

    assert_taken_in_turn(receive(dealer, 112), 3)


def test_TBL_ROUTER_receives_fairly_with_the_identity_first(rig: Rig) -> None:
    router = rig.ours(Router)
    dealers = [rig.peer("DEALER", identity=b"d%d" % name) for name in range(3)]
    rig.join(router, *dealers)
    for dealer in dealers:
        for number in numbers(3):
            dealer.send_parts([number, b"body"])
    rig.leave(router, *dealers)

    received = [router.recv_parts(PATIENCE_S) for _ in range(9)]

    for start in range(0, 9, 3):
        turn = received[start : start + 3]
        assert {parts[0] for parts in turn} == {b"d0", b"d1", b"d2"}
        assert {tuple(parts[1:]) for parts in turn} == {(b"%d" % (start // 3), b"body")}


def test_TBL_ROUTER_sends_to_the_identity_in_the_first_part_and_drops_for_unknown_ones(rig: Rig) -> None:
    router = rig.ours(Router)
    dealers = [rig.peer("DEALER", identity=b"d%d" % name) for name in range(2)]
    rig.join(router, *dealers)
    meet(router, dealers)

    router.send_parts([b"nobody", b"dropped"])
    router.send_parts([b"d1", b"for d1", b""])
    router.send_parts([b"d0", b"for d0"])

    assert dealers[0].recv_parts(PATIENCE_S) == [b"for d0"]
    assert dealers[1].recv_parts(PATIENCE_S) == [b"for d1", b""]


def meet(router: Router, dealers: list[Any]) -> None:
    """A ROUTER knows a peer once it has heard its identity."""
    for dealer in dealers:
        dealer.send(b"hello")
    for _ in dealers:
        assert router.recv_parts(PATIENCE_S)[1] == b"hello"


def test_TBL_ROUTER_drops_for_a_full_peer_without_an_error(rig: Rig) -> None:
    router, dealer = rig.ours(Router, **TINY), rig.peer("DEALER", identity=b"full", **TINY)
    rig.join(router, dealer)
    meet(router, [dealer])

    for _ in range(40):
        router.send_parts([b"full", LARGE])

    arrived = 0
    with contextlib.suppress(NoPeerWithinTimeout, TimeoutError, zmq.Again):
        while True:
            dealer.recv(0.2)
            arrived += 1
    assert 1 <= arrived <= MOST_HELD


def test_TBL_ROUTER_says_so_with_router_mandatory(rig: Rig) -> None:
    router = rig.ours(Router, **TINY, router_mandatory=True)
    dealer = rig.peer("DEALER", identity=b"full", **TINY)
    rig.join(router, dealer)
    meet(router, [dealer])

    with pytest.raises(PeerUnreachable):
        router.send_parts([b"nobody", b"x"], timeout=1)
    with pytest.raises(PeerUnreachable, match="identity"):
        router.try_send_parts([b"nobody", b"x"])
    accepted = 0
    while router.try_send_parts([b"full", b"%d" % accepted + LARGE]):
        accepted += 1
    assert 1 <= accepted <= MOST_HELD
    if not rig.is_network:  # a kernel may have room for one more by now
        with pytest.raises(NoPeerWithinTimeout):
            router.send_parts([b"full", b"late"], timeout=0.05)
    assert receive(dealer, accepted) == [number + LARGE for number in numbers(accepted)]
    router.send_parts([b"full", b"room again"], timeout=PATIENCE_S)
    assert dealer.recv(PATIENCE_S) == b"room again"


def test_TBL_PAIR_talks_both_ways(rig: Rig) -> None:
    pair, peer = rig.ours(Pair), rig.peer("PAIR")
    rig.join(pair, peer)

    peer.send_parts([b"hello", b""])
    pair.send(b"to you")

    assert pair.recv_parts(PATIENCE_S) == [b"hello", b""]
    assert peer.recv(PATIENCE_S) == b"to you"


@each(Push="TBL-PUSH", Dealer="TBL-DEALER", Pair="TBL-PAIR")
def test_waits_when_its_peers_are_full(rig: Rig, kind: type[Push | Dealer | Pair]) -> None:
    sender, peer = rig.ours(kind, **TINY), rig.peer("PULL" if kind is Push else kind.role.value, **TINY)
    rig.join(sender, peer)

    accepted = fill(sender.send, LARGE)

    assert 1 <= accepted <= MOST_HELD
    assert len(receive(peer, accepted)) == accepted
    sender.send(b"room again", timeout=PATIENCE_S)
    assert peer.recv(PATIENCE_S) == b"room again"


def test_TBL_PAIR_has_one_peer_alone(rig: Rig) -> None:
    pair, first, second = rig.ours(Pair), rig.peer("PAIR"), rig.peer("PAIR")
    rig.join(pair, first)
    first.send(b"first")
    assert pair.recv(PATIENCE_S) == b"first"
    second.connect(pair.endpoint)

    with contextlib.suppress(NoPeerWithinTimeout, zmq.Again):
        second.send(b"second", 0.05)
    for message in numbers(5):
        pair.send(message, timeout=PATIENCE_S)

    assert receive(first, 5) == numbers(5)
    assert pair.recv_many() == []
    assert second.recv_many() == []
    wait_until(lambda: not pair.raw.poll(0), PATIENCE_S)
