"""What views and sweeps look at: no more with four times as many queued tasks."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from taskmesh.core import events as ev
from taskmesh.core.ids import text_of
from taskmesh.hub.machine.views import task_views, views
from taskmesh.hub.metrics import hub_families
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import PROMISE, PROMISE_NAME, LimitRule, Spec
from tests.core.rig import HubRig, handle, spec

FEW, MANY = 4000, 16_000
LIMITED = spec("limited", limits=(LimitRule("api", 1),))


class Unread(dict):
    """A table of tasks whose rows can be looked up, and not looked through further than a view's limit."""

    limit = 60

    def __iter__(self):
        for number, key in enumerate(super().__iter__()):
            assert number < self.limit, "every task is looked at"
            yield key

    def keys(self):
        return iter(self)

    def values(self):
        return (self[key] for key in self)

    def items(self):
        return ((key, self[key]) for key in self)


class Crowded:
    """A hub with a pool of two slots, tasks in every state on the way, and so many that are queued."""

    def __init__(self, queued: int) -> None:
        self.rig = rig = HubRig(first=True)
        rig.client()
        rig.join(slots=2)
        rig.submit(one=LIMITED, count=queued // 8)
        self.last = rig.submit(one=LIMITED)[0]
        one = Spec(b"", PROMISE_NAME, kind=PROMISE, on_client_loss="cancel")
        (self.end,) = rig.submit(one=one, key="b", size=0)
        rig.submit(count=3)
        self.dependent = rig.depend(after=(self.end,))
        rig.submit(count=queued)
        for account in rig.hub.state.ledger.accounts.values():
            account.tasks = Unread(account.tasks)

    def ask(self, what: str, argument: str = "", limit: int = 50) -> m.Answer:
        return views.answer(self.rig.hub.state, m.Query(7, what, argument, limit), self.rig.now)

    def sweep(self) -> None:
        self.rig.now += 1.0
        handle(self.rig.hub, ev.Tick(), self.rig.now)


def id_of(seq: int) -> str:
    return text_of(1 << 64 | seq)


def steps(do: Callable[[], object]) -> int:
    """Count the lines that are executed; a loop counts each time round."""
    found = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal found
        found += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return found


VIEWS = {
    "status": lambda hub: hub.ask("status"),
    "tasks": lambda hub: hub.ask("tasks"),
    "queued": lambda hub: hub.ask("tasks", "queued"),
    "running": lambda hub: hub.ask("tasks", "running"),
    "a waiting task": lambda hub: hub.ask("task", id_of(hub.end)),
    "the last of a limit's queue": lambda hub: hub.ask("task", id_of(hub.last)),
    "limits": lambda hub: hub.ask("limits"),
    "pools": lambda hub: hub.ask("pools"),
    "metrics": lambda hub: hub_families(hub.rig.hub, {}),
    "a sweep": Crowded.sweep,
}


@pytest.fixture(scope="module")
def hubs() -> tuple[Crowded, Crowded]:
    return Crowded(FEW), Crowded(MANY)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_no_view_looks_at_all_tasks(hubs, view, monkeypatch):
    monkeypatch.setattr(task_views, "MOST_LOOKS", 30)
    few, many = (steps(lambda hub=hub: view(hub)) for hub in hubs)

    assert 0 < many <= few + (MANY - FEW) // 8, "it takes longer with more tasks"


def test_what_they_answer_is_right_for_all_of_them(hubs):
    few, hub = hubs
    tasks = hub.ask("status").value["tasks"]
    assert tasks == {"queued": MANY + MANY // 8 + 6, "running": 0}
    queued = [row["task_id"] for row in few.ask("tasks", "queued", FEW * 2).value]
    assert len({*queued}) == len(queued) == few.ask("status").value["tasks"]["queued"]
    assert queued[-2:] == [id_of(few.end), id_of(few.dependent)]
    (limit,) = hub.ask("limits").value
    assert limit["waiting"] == MANY // 8


def test_the_place_in_a_long_queue_is_at_least_what_was_looked_at(hubs, monkeypatch):
    monkeypatch.setattr(task_views, "MOST_LOOKS", 30)
    _, hub = hubs

    assert hub.ask("task", id_of(hub.last)).value["why"] == "limit api 1, 30 or more before it"
