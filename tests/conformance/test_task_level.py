# ruff: noqa: N802 (a test is named after its clause)
"""The ventilator, the collector and a pool's spool held to the clauses of 30/PIPELINE.

Read "pool" for peer, "credit window" for the outgoing queue, "spool" for the queue of what a pool reports.
Where the framework promises more than a socket does, the test is of that: what a socket throws away with a
peer is pushed again, and what a pool has sent counts even when the pool is gone.
"""

from __future__ import annotations

import pytest

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.core.credit import MOST_AHEAD
from taskmesh.wire import messages as m
from taskmesh.wire.runs import DoneRun, Held, Run
from tests.core.rig import EPOCH, HubRig, PoolRig, number_of, spec

Key = tuple[int, int, int]


@pytest.fixture
def hub() -> HubRig:
    hub = HubRig()
    hub.client()
    return hub


def teach(hub: HubRig, session: int, seconds: float) -> None:
    """Lets the hub learn how long a task takes in a pool's slots."""
    (seq,) = hub.submit()
    (key,) = [key for key in hub.held[session] if key[1] == seq]
    hub.report(session, done=(key,), elapsed=seconds)


def seqs(keys: list[Key]) -> list[int]:
    return [seq for _, seq, _ in keys]


# --- PUSH: the ventilator ---------------------------------------------------------------------------------


def test_task_PIPE_01_every_task_is_pushed_once_and_answered_once(hub: HubRig) -> None:
    sessions = [hub.join(pool, slots=2) for pool in "pqr"]
    submitted = hub.submit(count=40)
    pushed: list[int] = []
    while any(hub.held[session] for session in sessions):
        for session in sessions:
            keys = tuple(hub.held[session])
            pushed += seqs(list(keys))
            hub.report(session, done=keys)

    assert sorted(pushed) == submitted
    assert hub.outcomes() == dict.fromkeys(submitted, "done")


@pytest.mark.parametrize("pools", [1, 5, 1000])
def test_task_PIPE_02_as_many_pools_as_there_are(hub: HubRig, pools: int) -> None:
    sessions = [hub.join(f"p{number}", slots=1) for number in range(pools)]
    hub.submit(count=pools)

    assert [len(hub.held[session]) for session in sessions] == [1] * pools


def test_task_PIPE_03_nothing_is_taken_in_by_the_lane(hub: HubRig) -> None:
    session = hub.join()
    with pytest.raises(TypeError, match="not an event of a hub"):
        hub.tell(m.Tasks(EPOCH, session, 1, 0, 0.0, [], []))


def test_task_PIPE_04_payloads_are_pushed_as_they_came(hub: HubRig) -> None:
    hub.join(slots=3)
    payloads = [b"", b"\0" * 70_000, "\N{SNOWMAN}".encode()]
    one = spec()
    run = Run(number_of(one), 0, [1, 2, 3], payloads)
    actions = hub.tell(ev.FromClient(1, m.Submit(1, [(number_of(one), one)], [run])))

    pushed = [action.message for action in actions if isinstance(action, act.PushTasks)]
    assert [data for message in pushed for run in message.runs for data in run.payloads] == payloads


def test_task_PIPE_05_each_pool_has_a_window_of_its_own(hub: HubRig) -> None:
    quick, stuck = hub.join("quick", slots=1), hub.join("stuck", slots=1)
    hub.submit(count=10)
    for _ in range(9):
        hub.report(quick, done=(hub.held[quick][0],), elapsed=2.0)

    assert len(hub.held[stuck]) == 1
    assert len(hub.outcomes()) == 9


def test_task_PIPE_06_tasks_wait_for_a_pool_that_is_still_to_come(hub: HubRig) -> None:
    submitted = hub.submit(count=3)
    assert {hub.state(1, seq) for seq in submitted} == {"QUEUED"}
    session = hub.join(slots=3)

    assert seqs(hub.held[session]) == submitted


def test_task_PIPE_07_what_a_broken_lane_held_is_kept_and_not_run_twice(hub: HubRig) -> None:
    """Holds, but see D1: bytes that the kernel has are lost; the ledger knows them, and pushes them again."""
    session = hub.join(slots=2)
    submitted = hub.submit(count=2)
    held = list(hub.held[session])
    hub.tell(ev.LaneLost(session))
    inventory = [Held(1, 1, [held[0][1]])]  # one had arrived, the other was in the kernel's hands
    hub.hello(number=2, epoch=EPOCH, session=session, inventory=inventory)
    again = hub.session()
    hub.beat(again)

    assert seqs(hub.held[again]) == [held[1][1]]
    assert {hub.state(1, seq) for seq in submitted} <= {"SENT", "RUNNING"}


def test_task_PIPE_08_a_pools_arrival_makes_its_lane(hub: HubRig) -> None:
    actions = hub.hub.handle(ev.FromPool(m.Hello("p", 1, 1, 2, ["default"], [], 0, 0, [])), hub.now)

    assert [action.pool for action in actions if isinstance(action, act.OpenLane)] == ["p"]


def test_task_PIPE_09_a_pools_leaving_closes_its_lane(hub: HubRig) -> None:
    session = hub.join()
    hub.tell(ev.FromPool(m.Bye(EPOCH, session)))

    assert hub.closed == [session]
    assert session not in hub.hub.state.lanes


def test_task_PIPE_10_what_the_lane_held_is_thrown_away_and_pushed_again(hub: HubRig) -> None:
    gone, stays = hub.join("gone", slots=2), hub.join("stays", slots=2)
    hub.submit(count=4)
    lost = seqs(hub.held[gone])
    hub.report(stays, done=tuple(hub.held[stays]))
    hub.tell(ev.LinksLost(gone))
    hub.after(1.5)

    assert hub.closed == [gone]
    assert {(seq, attempt) for _, seq, attempt in hub.held[stays]} == {(seq, 2) for seq in lost}


def test_task_PIPE_11_the_window_is_limited_and_follows_what_is_measured(hub: HubRig) -> None:
    session = hub.join(slots=1)
    teach(hub, session, 0.0)
    hub.submit(count=2 * MOST_AHEAD)

    assert len(hub.held[session]) == MOST_AHEAD


def test_task_PIPE_12_a_pool_is_available_only_while_it_has_credit(hub: HubRig) -> None:
    session = hub.join(slots=2)
    submitted = hub.submit(count=3)
    assert seqs(hub.held[session]) == submitted[:2]
    hub.report(session, done=(hub.held[session][0],), elapsed=5.0)

    assert seqs(hub.held[session]) == submitted[1:]


def test_task_PIPE_13_pools_are_served_in_turn_and_full_ones_left_out(hub: HubRig) -> None:
    small, large = hub.join("small", slots=1), hub.join("large", slots=5)
    for _ in range(6):
        hub.submit()
    held = {name: seqs(hub.held[session]) for name, session in (("small", small), ("large", large))}

    assert len(held["small"]) == 1
    assert len(held["large"]) == 5
    assert held["small"][0] in (1, 2)


def test_task_PIPE_14_without_a_pool_tasks_wait_and_a_full_hub_says_busy() -> None:
    hub = HubRig(max_tasks=5)
    hub.client()
    hub.submit(count=5)
    hub.submit(count=1)

    assert isinstance(hub.told[1][-1], m.Busy)
    assert [hub.state(1, seq) for seq in range(1, 6)] == ["QUEUED"] * 5


@pytest.mark.parametrize("state", ["paused", "draining"])
def test_task_PIPE_15_nothing_is_pushed_to_a_pool_that_takes_nothing(hub: HubRig, state: str) -> None:
    session = hub.join(slots=2)
    hub.beat(session, state=state)
    (seq,) = hub.submit()

    assert hub.held[session] == []
    assert hub.state(1, seq) == "QUEUED"


def test_task_PIPE_16_a_refused_submission_is_taken_when_there_is_room_again() -> None:
    hub = HubRig(max_tasks=2)
    hub.client()
    hub.submit(count=2)
    one = spec()
    run = Run(number_of(one), 0, [3], [b"x"])
    refused = m.Submit(2, [], [run])
    hub.tell(ev.FromClient(1, refused))
    assert isinstance(hub.told[1][-1], m.Busy)
    session = hub.join(slots=2)
    hub.report(session, done=tuple(hub.held[session]))
    hub.tell(ev.FromClient(1, refused))  # as the client does after the time that Busy names
    hub.report(session, done=tuple(hub.held[session]))

    assert hub.outcomes() == {1: "done", 2: "done", 3: "done"}


# --- PULL: the collector, and the spool of a pool ---------------------------------------------------------


def test_task_PIPE_17_any_number_of_pools_report(hub: HubRig) -> None:
    sessions = [hub.join(f"p{number}", slots=1) for number in range(50)]
    submitted = hub.submit(count=50)
    for session in reversed(sessions):
        hub.report(session, done=tuple(hub.held[session]))

    assert hub.outcomes() == dict.fromkeys(submitted, "done")


def test_task_PIPE_18_a_report_is_answered_elsewhere(hub: HubRig) -> None:
    """What a pool is to know goes by its lane or the control channel: nothing is ever sent to a collector."""
    session = hub.join(slots=1)
    hub.submit(count=2)
    key = hub.held[session][0]
    report = m.Results(
        EPOCH, session, 1, [DoneRun(1, *key[:1], key[2], "p/0", [key[1]], [b"r"], 0.1)], [], []
    )
    actions = hub.tell(ev.FromPool(report))

    assert actions
    assert {type(action) for action in actions} <= {act.PushTasks, act.SendClient, act.Publish}


def test_task_PIPE_19_results_are_delivered_as_they_came(hub: HubRig) -> None:
    session = hub.join(slots=3)
    hub.submit(count=3)
    payloads = [b"", b"\0" * 70_000, "\N{SNOWMAN}".encode()]
    done = DoneRun(number_of(spec()), 1, 1, "p/0", seqs(hub.held[session]), payloads, 0.1)
    hub.tell(ev.FromPool(m.Results(EPOCH, session, 1, [done], [], [])))

    delivered = [message for message in hub.told[1] if isinstance(message, m.Deliver)]
    assert [data for message in delivered for run in message.done for data in run.payloads] == payloads


def test_task_PIPE_20_each_pools_reports_are_numbered_by_themselves(hub: HubRig) -> None:
    sessions = [hub.join(pool, slots=1) for pool in "pq"]
    submitted = hub.submit(count=2)
    for session in sessions:  # both say: my report number 1
        hub.report(session, done=tuple(hub.held[session]))

    assert [hub.hub.state.lanes[session].reports.to for session in sessions] == [1, 1]
    assert hub.outcomes() == dict.fromkeys(submitted, "done")


def test_task_PIPE_21_a_pool_gathers_reports_before_it_has_a_session() -> None:
    pool = PoolRig()
    pool.push(1, 2)
    pool.lose_lane()
    pool.finish(0)
    assert not pool.reports()
    pool.welcome(session=2)

    assert pool.done() == [1]


def test_task_PIPE_22_reports_outlive_a_broken_connection() -> None:
    pool = PoolRig()
    pool.push(1, 2)
    pool.finish(0)
    assert pool.done() == [1]
    pool.lose_lane()  # the hub never said that it has the report
    inventory = pool.of(m.Hello)[-1].inventory
    pool.welcome(session=2)

    assert 1 in [seq for held in inventory for seq in held.seqs]
    assert pool.done() == [1, 1]


def test_task_PIPE_23_a_pools_hello_opens_its_account(hub: HubRig) -> None:
    assert hub.hub.state.lanes == {}
    session = hub.join("p")

    assert [lane.pool for lane in hub.hub.state.lanes.values()] == ["p"]
    assert hub.hub.state.lanes[session].reports.to == 0


def test_task_PIPE_24_reports_that_a_leaving_pool_had_sent_still_count(hub: HubRig) -> None:
    """Deviates, D4: the queue of a peer that left is read to its end, and that is what we want."""
    session = hub.join(slots=1)
    (seq,) = hub.submit()
    keys = tuple(hub.held[session])
    hub.tell(ev.LinksLost(session))
    hub.report(session, done=keys)

    assert hub.outcomes() == {seq: "done"}


def test_task_PIPE_25_a_result_of_an_ended_session_is_not_thrown_away(hub: HubRig) -> None:
    """Deviates, D4: results survive the pool that made them; the first success of any attempt counts."""
    session = hub.join("p", slots=1)
    (seq,) = hub.submit()
    keys = tuple(hub.held[session])
    hub.tell(ev.LinksLost(session))
    hub.after(1.5)
    other = hub.join("q", slots=1)
    assert [attempt for _, _, attempt in hub.held[other]] == [2]
    hub.report(session, done=keys)
    hub.report(other, done=tuple(hub.held[other]))

    assert hub.outcomes() == {seq: "done"}


def test_task_PIPE_26_results_that_nobody_takes_have_a_limit() -> None:
    hub = HubRig(client_max_bytes=200)
    hub.client(credit=1)
    session = hub.join(slots=1)
    submitted = hub.submit(count=20)
    while hub.held[session]:
        hub.report(session, done=tuple(hub.held[session]), elapsed=2.0)

    states = [hub.state(1, seq) for seq in submitted]
    assert 0 < states.count("finished") < 20
    assert states.count("QUEUED") == 20 - states.count("finished")


def test_task_PIPE_27_no_pools_reports_wait_for_anothers(hub: HubRig) -> None:
    """Each report is handled when it is taken, and the socket takes from all pools in turn."""
    flood, single = hub.join("flood", slots=50), hub.join("single", slots=1)
    hub.submit(count=51)
    flooded, lone = list(hub.held[flood]), hub.held[single][0]
    for key in flooded[:25]:
        hub.report(flood, done=(key,))
    hub.report(single, done=(lone,))
    assert hub.outcomes()[lone[1]] == "done"
    for key in flooded[25:]:
        hub.report(flood, done=(key,))

    assert len(hub.outcomes()) == 51


def test_task_PIPE_28_outcomes_go_to_the_client_that_submitted(hub: HubRig) -> None:
    hub.client(2)
    session = hub.join(slots=4)
    mine, theirs = hub.submit(1, 2), hub.submit(2, 2)
    hub.report(session, done=tuple(hub.held[session]))

    assert hub.outcomes(1) == dict.fromkeys(mine, "done")
    assert hub.outcomes(2) == dict.fromkeys(theirs, "done")
