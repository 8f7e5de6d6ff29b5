"""Limits whose rules change: once a step, by name, and in portions."""

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.books.limits import LimitCounter
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import LimitRule, Run
from tests.core.rig import HubRig, number_of
from tests.hub.machine.test_limits import USER, finish, limited, rig_with, submit


@pytest.fixture
def rig() -> HubRig:
    return rig_with()


@pytest.fixture
def changes(monkeypatch) -> list[int]:
    """Gets the new count of each change of a counter."""
    counts: list[int] = []
    change = LimitCounter.change

    def counting(counter: LimitCounter, rule: LimitRule) -> None:
        counts.append(rule.count)
        change(counter, rule)

    monkeypatch.setattr(LimitCounter, "change", counting)
    return counts


def test_one_message_that_states_a_limit_anew_a_thousand_times_is_one_change(rig, changes):
    submit(rig, limited(USER), *(f"k{n}" for n in range(50)))
    specs = [limited(*[LimitRule("user", n + 2, keyed=True)] * 16, name=f"g{n}") for n in range(100)]
    brought = [(number_of(one), one) for one in specs]
    runs = [Run(number, 0, [100 + n], [b""], part="k0") for n, (number, _) in enumerate(brought)]
    rig.tell(ev.FromClient(1, m.Submit(2, brought, runs)))
    told = [record.fields for record in rig.records if record.kind == "limit.changed"]

    assert changes == [101] * 50
    assert [(fields["rule"], fields["task"]) for fields in told] == [("101", "g99")]


def test_specs_without_a_task_change_nothing(rig):
    submit(rig, limited(USER), "a")
    specs = [limited(LimitRule("user", n + 2, keyed=True), name=f"g{n}") for n in range(100)]
    rig.tell(ev.FromClient(1, m.Submit(2, [(number_of(one), one) for one in specs], [])))

    assert rig.hub.state.ledger.limits.rules == {"user": USER}
    assert len(rig.hub.state.specs) == 1


def test_a_limit_with_many_keys_changes_in_portions(rig, changes, monkeypatch):
    monkeypatch.setattr("taskmesh.hub.machine.books.limits.PORTION", 10)
    submit(rig, limited(USER), *(f"k{n}" for n in range(35)))
    command = m.Command(1, "limit", "user:2")
    rig.tell(ev.FromClient(1, command))
    assert len(changes) == 10
    for count in (3, 4, 5, 6):  # before all have heard of the first
        command.target = f"user:{count}"
        rig.tell(ev.FromClient(1, command))
    assert len(changes) == 50
    steps = 5
    while rig.hub.deadline <= rig.now:
        rig.tell(ev.Tick())
        steps += 1
        assert len(changes) <= 10 * steps
    found = {counter.rule.count for counter in rig.hub.state.ledger.limits.counters.values()}

    assert found == {6}
    assert steps <= 9, "two walks, of which the second begins after the last change"


def test_rules_that_no_task_has_are_forgotten_the_oldest_first(rig, monkeypatch):
    monkeypatch.setattr("taskmesh.hub.machine.books.limits.MOST_RULES", 2)
    session = rig.join(slots=8)
    for n in range(5):
        rig.submit(one=limited(LimitRule(f"gpu{n}", 1), name=f"g{n}"))
    assert len(rig.hub.state.ledger.limits.rules) == 5, "their tasks run"
    finish(rig, session, 5)
    rig.submit(one=limited(LimitRule("gpu", 2)))

    assert list(rig.hub.state.ledger.limits.rules) == ["gpu4", "gpu"]
