"""The checks themselves: each finds the book that was tampered with."""

import pytest

from taskmesh.core.state_machine import BrokenInvariant
from taskmesh.hub.machine.books.states import State
from taskmesh.pool.machine.slots import Piece
from tests.core.rig import HubRig, PoolRig, spec


def busy_hub() -> HubRig:
    rig = HubRig()
    rig.join(slots=2)
    rig.client()
    rig.submit(1, 5)
    return rig


def first(rig: HubRig) -> object:
    return rig.tasks[1 << 64 | 1]


HUB = {
    "accepted = finished": lambda rig: setattr(rig.hub.state.ledger, "accepted", 99),
    "count of tasks": lambda rig: setattr(rig.hub.state.ledger, "count", 4),
    "an account's tasks": lambda rig: rig.hub.state.ledger.account(1).tasks.update({9: first(rig)}),
    "who waits for it": lambda rig: setattr(first(rig).more(), "abandoned", True),
    "ids that pools report": lambda rig: rig.hub.state.ledger.aliases.update({9: first(rig)}),
    "finished and on its way": lambda rig: rig.hub.state.ledger.account(1).finished.add(1),
    "ledger's size": lambda rig: setattr(rig.hub.state.ledger, "size", 1),
    "terminal task has a record": lambda rig: setattr(first(rig), "state", State.SUCCEEDED),
    "more returns than attempts": lambda rig: setattr(first(rig), "returns", 2),
    "crashed too often": lambda rig: setattr(first(rig), "crashes", 3),
    "session that has ended": lambda rig: setattr(first(rig), "session", 8),
    "lane's count": lambda rig: setattr(rig.hub.state.lanes[1], "outstanding", 3),
    "counts by spec": lambda rig: rig.hub.state.lanes[1].counts.clear(),
    "live count": lambda rig: setattr(first(rig).spec, "live", 1),
    "was forgotten": lambda rig: rig.hub.state.specs.clear(),
    "queued tasks and the backlog": lambda rig: setattr(first(rig), "state", State.QUEUED),
}


@pytest.mark.parametrize("what", HUB)
def test_a_hubs_book_that_is_wrong_is_found(what):
    rig = busy_hub()
    rig.hub.check()
    HUB[what](rig)

    with pytest.raises(BrokenInvariant):
        rig.hub.check()


def busy_pool() -> PoolRig:
    rig = PoolRig()
    rig.push(1, 2, 3)
    return rig


def twice(rig: PoolRig) -> None:
    piece = rig.pool.scheduler.backlog[0]
    rig.pool.scheduler.backlog.append(Piece(piece.run, piece.low, piece.high))


POOL = {
    "slot's count": lambda rig: setattr(rig.pool.slots[0], "count", 2),
    "twice in a pool": twice,
    "serials": lambda rig: setattr(rig.pool.slots[0], "serial", 0),
    "spec was forgotten": lambda rig: rig.pool.scheduler.specs.clear(),
    "cancelled tasks": lambda rig: rig.pool.scheduler.cancelled.add((1, 77, 1)),
    "is down holds": lambda rig: setattr(rig.pool.slots[0], "state", type(rig.pool.slots[0].state).DOWN),
}


@pytest.mark.parametrize("what", POOL)
def test_a_pools_book_that_is_wrong_is_found(what):
    rig = busy_pool()
    rig.pool.check()
    POOL[what](rig)

    with pytest.raises(BrokenInvariant, match=what.split()[-1]):
        rig.pool.check()


def test_caps_are_checked():
    rig = HubRig(max_tasks=3)
    rig.client()
    rig.submit(1, 3, spec())
    object.__setattr__(rig.hub.config, "max_tasks", 2)

    with pytest.raises(BrokenInvariant, match="cap"):
        rig.hub.check()
