"""What a hub packs into one delivery: successes first, about four megabytes of either."""

import pytest

from taskmesh.hub.machine.books.client_session import MAX_DELIVERY, ClientSession
from taskmesh.messages.mesh_messages import Deliver
from taskmesh.messages.runs import DoneRun, Failed

CREDIT = 1 << 40
NOW = 5.0


def success(seq: int, size: int = 1) -> DoneRun:
    return DoneRun(1, 1, 1, "p/0", [seq], [bytes(size)], 0.1)


def failure(seq: int, size: int = 1) -> Failed:
    return Failed(1, seq, 1, "exception", pickled=bytes(size))


@pytest.fixture
def session() -> ClientSession:
    session = ClientSession(1, 1, NOW)
    session.credit = CREDIT
    return session


def packed(session: ClientSession) -> list[tuple[list[int], list[int]]]:
    deliveries = [send.message for send in session.deliveries(NOW)]
    assert all(isinstance(deliver, Deliver) for deliver in deliveries)
    return [
        ([seq for run in deliver.done for seq in run.seqs], [failed.seq for failed in deliver.failed])
        for deliver in deliveries
    ]


def test_failures_go_along_when_all_successes_have_their_place(session):
    session.add(failure(9))
    for seq in (1, 2):
        session.add(success(seq))

    assert packed(session) == [([1, 2], [9])]


def test_failures_wait_while_successes_are_left(session):
    session.add(failure(9))
    for seq in (1, 2):
        session.add(success(seq, MAX_DELIVERY))

    assert packed(session) == [([1], []), ([2], [9])]


def test_large_failures_are_cut_too(session):
    for seq in (1, 2, 3):
        session.add(failure(seq, MAX_DELIVERY // 2))

    assert packed(session) == [([], [1, 2]), ([], [3])]


@pytest.mark.parametrize(("credit", "counted"), [(0, 0), (CREDIT, 42)])
def test_results_are_counted_unless_they_are_in_the_clients_hands_at_once(session, credit, counted):
    session.credit = credit

    assert session.add(success(1, 10)) == counted
    assert session.size == counted
