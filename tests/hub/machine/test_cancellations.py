"""Cancellations of many tasks: in portions, and with nothing started meanwhile."""

import pytest

from taskmesh.client.machine import submission
from taskmesh.client.machine.submission import portions
from taskmesh.core import events as ev
from taskmesh.hub.machine import cancellations
from taskmesh.hub.machine.books import ledger
from taskmesh.messages import mesh_messages as m
from tests.core.rig import EPOCH, HubRig, spec

BOUND = spec("bound", on_client_loss="cancel")


@pytest.fixture(autouse=True)
def _smallportions(monkeypatch):
    monkeypatch.setattr(cancellations, "PORTION", 10)
    monkeypatch.setattr(ledger, "PORTION", 10)


def on_their_way(rig: HubRig, who: int) -> int:
    account = rig.hub.state.ledger.accounts.get(who)
    return len(account.tasks) if account is not None else 0


def go_on(rig: HubRig) -> int:
    """Steps until nothing is pending; returns how many it took."""
    steps = 0
    while rig.hub.state.cancellations.pending:
        assert rig.hub.deadline <= rig.now
        rig.tell(ev.Tick())
        steps += 1
    return steps


def test_a_client_that_ends_with_many_tasks_is_ended_inportions():
    """2M tasks of one client that left by Ctrl-C kept everybody else waiting for 11 s."""
    rig = HubRig()
    rig.client(1)
    rig.client(2)
    rig.submit(1, 100)
    rig.tell(ev.FromClient(1, m.ClientBye(cancel=True)))
    assert on_their_way(rig, 1) == 90

    session = rig.join(slots=4)
    rig.submit(2, 1)
    assert rig.held[session] == [(2, 1, 1)]  # others' tasks go on, none of the client's starts
    assert go_on(rig) > 3
    rig.after(0.6)
    assert 1 not in rig.hub.state.ledger.accounts
    assert not rig.hub.state.ledger.backlog.withheld
    assert [held for held in rig.held[session] if held[0] == 1] == []


def test_a_client_that_says_hello_while_its_tasks_end_is_welcomed_when_they_have():
    rig = HubRig()
    rig.client(1)
    rig.submit(1, 50)
    rig.tell(ev.FromClient(1, m.ClientBye(cancel=True)))
    rig.told[1].clear()
    rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH)))
    assert rig.told[1] == []  # what it submitted again now would end with the rest

    go_on(rig)
    for _ in range(2):  # as a client that is not known any more does
        rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH, first=2)))
    assert [welcome.session for welcome in rig.told[1]] == [0, 2]
    rig.submit(1, 3)
    assert on_their_way(rig, 1) == 3


def test_what_is_bound_to_a_client_that_is_gone_ends_in_portions_and_the_rest_runs():
    rig = HubRig(client_grace=2.0)
    rig.client(1)
    rig.submit(1, 60, one=BOUND)
    rig.submit(1, 60)
    rig.tell(ev.ClientGone(1))
    rig.after(2.2)
    go_on(rig)

    assert on_their_way(rig, 1) == 60
    session = rig.join(slots=100)
    assert len(rig.held[session]) == 60


def test_a_client_that_is_back_before_all_is_cancelled_is_told_of_each():
    rig = HubRig(client_grace=2.0)
    rig.client(1)
    bound = rig.submit(1, 60, one=BOUND)
    rig.tell(ev.ClientGone(1))
    rig.after(2.0)
    rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH)))
    new = rig.submit(1, 5)
    session = rig.join(slots=4)
    go_on(rig)

    assert {task for task, how in rig.outcomes(1).items() if how == "cancelled"} == set(bound)
    rig.tell(ev.Tick())
    assert [seq for _, seq, _ in rig.held[session]] == new[:4]


def test_many_timers_fire_inportions():
    """After a restart a million tasks wait for the same moment."""
    rig = HubRig()
    rig.client(1)
    rig.submit(1, 35, one=spec("late", expires=5.0))
    rig.now += 5.0
    rig.tell(ev.Tick())
    assert on_their_way(rig, 1) == 25
    for _ in range(3):
        assert rig.hub.deadline <= rig.now
        rig.tell(ev.Tick())
    assert set(rig.outcomes(1).values()) == {"expired"}
    assert len(rig.outcomes(1)) == 35


def test_a_client_gives_up_many_tasks_in_many_messages(monkeypatch):
    """`mesh.cancel()` of 2M tasks was one message, and the hub stood still for 6 s."""
    monkeypatch.setattr(submission, "MAX_CANCELS", 10)
    assert portions([], []) == [([], [])]
    assert portions(list(range(25)), [7]) == [
        (list(range(10)), [7]),
        (list(range(10, 20)), []),
        (list(range(20, 25)), []),
    ]


def keyed(rig: HubRig, who: int, user: str) -> None:
    rig.tell(ev.FromClient(who, m.ClientHello(who, 0, name=f"name-{who}", credit=1 << 20), user))


def ask(rig: HubRig, verb: str, target: str) -> m.Answer:
    rig.tell(ev.FromClient(9, m.ClientHello(9, 0)))
    rig.tell(ev.FromClient(9, m.Command(1, verb, target)))
    return next(found for found in reversed(rig.told[9]) if isinstance(found, m.Answer))


@pytest.mark.parametrize("left", [False, True])
def test_tasks_of_a_revoked_client_do_not_start_and_end(left):
    """16 of 60 started after the revocation, until the queue was empty."""
    rig = HubRig()
    keyed(rig, 1, "client:mallory")
    keyed(rig, 2, "client:ann")
    rig.submit(1, 30)
    rig.submit(2, 3)
    if left:
        rig.tell(ev.FromClient(1, m.ClientBye(cancel=False)))
    rig.tell(ev.Revoked(frozenset({"client:mallory"})))
    session = rig.join(slots=40)
    go_on(rig)
    rig.after(0.6)

    assert {client for client, _, _ in rig.held[session]} == {2}
    assert 1 not in rig.hub.state.ledger.accounts
    (told,) = [record for record in rig.records if record.kind == "tasks.cancelled"]
    assert told.fields["tasks"] == 30
    assert told.fields["reason"] == "the key of client:mallory was revoked"


@pytest.mark.parametrize(
    ("verb", "target"),
    [("cancel-client", "name-1"), ("cancel-client", f"{1:016x}"), ("cancel-key", "client:mallory")],
)
def test_operators_cancel_all_that_a_client_or_a_key_has(verb, target):
    rig = HubRig()
    keyed(rig, 1, "client:mallory")
    keyed(rig, 2, "client:ann")
    rig.submit(1, 30)
    rig.submit(2, 3)
    answer = ask(rig, verb, target)
    assert (answer.error, answer.value["cancelled"]) == ("", 30)
    go_on(rig)

    assert set(rig.outcomes(1).values()) == {"cancelled"}
    assert len(rig.outcomes(1)) == 30
    assert on_their_way(rig, 2) == 3
    assert on_their_way(rig, 1) == 0
    assert len(rig.submit(1, 2)) == on_their_way(rig, 1) == 2


@pytest.mark.parametrize(("verb", "target"), [("cancel-client", "nobody"), ("cancel-key", "")])
def test_who_names_nobody_is_told(verb, target):
    assert "`taskmesh status --json` names them" in ask(HubRig(), verb, target).error
