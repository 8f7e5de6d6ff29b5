"""Nothing leaves a hub that depends on a change of its journal which is not written, as lists of events.

The next hub has what is written and no more: whoever has heard of an outcome, an acceptance or an answer
hears the same from it.
"""

from __future__ import annotations

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine import clients, collector
from taskmesh.hub.machine.clients import PORTION
from taskmesh.hub.machine.collector import ANYBODY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import JournalOutcome
from taskmesh.messages.runs import ATTACHMENT, ATTACHMENT_NAME, PROMISE, PROMISE_NAME, DoneRun, Run, Spec
from tests.core.clockwork import Clockwork
from tests.core.rig import EPOCH, HubRig, number_of, spec
from tests.hub.machine.test_durable_schedules import clockwork
from tests.hub.machine.test_journal import (
    accepted,
    acknowledge,
    after_death,
    attached,
    hub,
    kinds,
    past_recovery,
    run_all,
)
from tests.hub.machine.test_sinks import Consumer

KEPT = spec("kept", keep=60.0, detach=True)
TO_SINK = spec("to a sink", sink="s")
READER, LATER = 2, 3


@pytest.fixture
def rig() -> HubRig:
    """A hub with an empty journal, and client 1."""
    rig = hub()
    rig.client()
    return rig


def attach(rig: HubRig, seq: int, client: int = READER) -> None:
    """Have another client wait for a task of client 1."""
    rig.client(client)
    one = Spec(b"", ATTACHMENT_NAME, kind=ATTACHMENT)
    run = Run(number_of(one), 0, [1], [b""], f"{1:016x}{seq:016x}")
    rig.tell(ev.FromClient(client, m.Submit(1, [(number_of(one), one)], [run])))


def answers(rig: HubRig, client: int = 1) -> list[m.Answer]:
    return [said for said in rig.told[client] if isinstance(said, m.Answer)]


# --- outcomes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("notice", ["gone", "silent", "left"])
@pytest.mark.parametrize("was_sent", [True, False])
def test_what_ended_before_the_death_of_its_client_was_noticed_does_not_run_again(notice, was_sent):
    rig = hub(client_silence=5.0)
    rig.client(credit=1 << 20 if was_sent else 1)
    session = rig.join(slots=4)
    rig.submit()
    seqs = rig.submit(count=3)
    run_all(rig, session)
    rig.write()
    if notice == "gone":
        rig.tell(ev.ClientGone(1))
        rig.tell(ev.Tick())
    elif notice == "left":
        rig.tell(ev.FromClient(1, m.ClientBye(cancel=False)))
        rig.tell(ev.Tick())
    else:
        rig.after(6.0)
    rig.write()
    assert kinds(rig).count("o") == 4

    again = after_death(rig)
    session = again.join()
    past_recovery(again, session)
    assert again.held[session] == []
    assert [attached(again, seq, client) for seq, client in zip(seqs, (2, 3, 4), strict=True)] == ["done"] * 3


def test_many_outcomes_of_a_client_that_dies_are_written_in_portions():
    rig = hub()
    rig.client(credit=1)
    seqs = rig.submit(count=3 * PORTION)
    one = number_of(spec())
    for at in range(0, len(seqs), 100):
        part = seqs[at : at + 100]
        collector.on_done(rig.hub.state, DoneRun(one, 1, 1, "p/0", part, [b"r"] * 100, 0.1), ANYBODY)
    rig.write()
    rig.tell(ev.ClientGone(1))
    most = max([len(write.changes) for write in rig.unwritten], default=0)
    assert most <= PORTION + 100

    while rig.hub.deadline <= rig.now:
        rig.tell(ev.Tick())
    rig.write()
    assert sum(isinstance(entry, JournalOutcome) for entry in rig.journal.values()) == len(seqs)


def test_another_one_who_waits_for_a_task_hears_of_its_end_when_that_is_written(rig):
    session = rig.join()
    (seq,) = rig.submit()
    rig.write()
    attach(rig, seq)
    run_all(rig, session)
    rig.after(0.5)
    assert rig.outcomes(READER) == {}, "its own client may die, and the next hub would run it again"

    rig.write()
    assert rig.outcomes(READER) == {1: "done"}
    again = after_death(rig)
    session = again.join()
    past_recovery(again, session)
    assert again.held[session] == []
    assert attached(again, seq, LATER) == "done"


def test_an_outcome_that_is_fetched_by_its_id_is_written_before(rig):
    session = rig.join()
    (seq,) = rig.submit()
    run_all(rig, session)
    rig.tell(ev.ClientGone(1))
    attach(rig, seq)
    rig.after(0.5)
    assert rig.outcomes(READER) == {}

    rig.write()
    assert rig.outcomes(READER) == {1: "done"}


def test_a_kept_outcome_leaves_the_hub_when_it_is_written(rig):
    session = rig.join()
    (seq,) = rig.submit(one=KEPT, key="k")
    run_all(rig, session)
    attach(rig, seq)
    (later,) = rig.submit(LATER if rig.client(LATER) else 0, one=spec("kept", keep=60.0), key="k")
    rig.after(0.5)
    assert (rig.outcomes(), rig.outcomes(READER), rig.outcomes(LATER)) == ({}, {}, {})
    assert accepted(rig) == 0

    rig.write()
    assert rig.outcomes() == {seq: "done"}
    assert rig.outcomes(READER) == {1: "done"}
    assert rig.outcomes(LATER) == {later: "done"}
    assert attached(after_death(rig), seq) == "done"


def test_what_is_written_and_what_needs_no_journal_goes_on_while_that_is_away(rig):
    session = rig.join()
    (kept,) = rig.submit(one=KEPT, key="k")
    run_all(rig, session)
    rig.write()
    (held,) = rig.submit(one=KEPT, key="other")
    (plain,) = rig.submit(one=spec("not durable", durable=False))
    run_all(rig, session)
    attach(rig, kept)
    assert rig.outcomes() == {kept: "done", plain: "done"}
    assert rig.outcomes(READER) == {1: "done"}

    rig.write()
    assert rig.outcomes()[held] == "done"


def test_the_end_of_a_dependent_does_not_come_before_that_of_its_cause(rig):
    session = rig.join()
    (cause,) = rig.submit(one=KEPT, key="k")
    dependent = rig.depend(cause)
    rig.fail(session, rig.held[session][0], retryable=False)
    rig.after(0.5)
    assert rig.outcomes() == {}

    rig.write()
    assert rig.outcomes() == {cause: "exception", dependent: "dependency"}


def test_a_client_that_goes_has_what_was_held_for_it_at_the_next_hub(rig):
    session = rig.join()
    (seq,) = rig.submit()
    attach(rig, seq)
    run_all(rig, session)
    rig.tell(ev.ClientGone(1))
    rig.write()

    again = after_death(rig)
    again.client()
    assert again.outcomes() == {seq: "done"}
    acknowledge(again)


# --- sinks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["there", "gone", "forgotten"])
def test_an_acknowledgement_is_taken_in_when_it_is_written(client):
    rig = hub(result_ttl=0.1 if client == "forgotten" else 60.0)
    rig.client()
    session = rig.join()
    one = Consumer(rig, READER)
    seqs = rig.submit(count=2, one=TO_SINK)
    rig.write()
    if client != "there":
        rig.tell(ev.ClientGone(1))
    run_all(rig, session)
    if client == "forgotten":
        clients._forget(rig.hub.state, rig.hub.state.clients[1])
    rig.write()
    told = len(rig.told[READER])
    one.ack(*seqs)
    before = [said.reports for said in rig.told[READER][told:] if isinstance(said, m.SinkReportAck)]
    assert before == [1], "of its first report, which has opened the sink"
    assert rig.outcomes() == {}

    rig.write()
    assert rig.told[READER][-1] == m.SinkReportAck("s", 1, 2)
    assert rig.outcomes() == (dict.fromkeys(seqs, "done") if client == "there" else {})
    again = after_death(rig)
    session = again.join()
    past_recovery(again, session)
    assert again.held[session] == []
    assert Consumer(again, READER).seqs == []


def test_a_consumer_that_closes_waits_until_all_that_it_has_acknowledged_is_written(rig):
    session = rig.join()
    one = Consumer(rig, READER)
    (seq,) = rig.submit(one=TO_SINK)
    run_all(rig, session)
    rig.write()
    one.ack(seq)
    one.report(closed=True)
    one.say(3, [], closed=True)
    assert one.known
    assert rig.told[READER][-1] == m.SinkReportAck("s", 1, 1)

    rig.write()
    assert rig.told[READER][-1] == m.SinkReportAck("s", 1, 3)


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "target"), [("limit", "api:1/m"), ("unlimit", "gpu"), ("cancel", "")])
def test_an_operator_hears_that_something_is_so_when_it_is_written(rig, verb, target):
    (seq,) = rig.submit()
    rig.tell(ev.FromClient(1, m.Command(1, "limit", "gpu:2")))
    rig.write()
    assert len(answers(rig)) == 1
    target = target or f"{1:016x}{seq:016x}"
    rig.tell(ev.FromClient(1, m.Command(2, verb, target)))
    rig.tell(ev.FromClient(1, m.Command(3, "resume", "all")))
    assert [answer.number for answer in answers(rig)] == [1, 3], "what is not of the journal does not wait"

    rig.write()
    assert [answer.number for answer in answers(rig)] == [1, 3, 2]
    again = after_death(rig)
    rules = again.hub.state.ledger.limits.fixed
    assert sorted(rules) == {"limit": ["api", "gpu"], "unlimit": [], "cancel": ["gpu"]}[verb]
    assert (again.state(1, seq) == "finished") == (verb == "cancel")


def test_a_schedule_is_paused_when_that_is_written():
    world: Clockwork = clockwork()
    world.put(period=60.0)
    world.rig.write()
    world.rig.client(READER)
    world.rig.tell(ev.FromClient(READER, m.Command(1, "schedule-pause", "n")))
    assert answers(world.rig, READER) == []

    world.rig.write()
    assert len(answers(world.rig, READER)) == 1
    assert clockwork(world).rig.hub.state.schedules.records["n"].paused


def test_who_comes_second_to_a_promise_hears_so_when_the_first_value_is_written(rig):
    rig.client(READER)
    one = Spec(b"", PROMISE_NAME, kind=PROMISE)
    (seq,) = rig.submit(one=one, key="k", size=0)
    rig.write()
    for client in (1, READER):
        rig.tell(ev.FromClient(client, m.Fulfil(1, "k", b"value of %d" % client, 60.0)))
    rig.after(0.5)
    assert (answers(rig), answers(rig, READER), rig.outcomes()) == ([], [], {})

    rig.write()
    assert [answers(rig)[0].value, answers(rig, READER)[0].value] == [True, False]
    assert rig.outcomes() == {seq: "done"}
    again = after_death(rig)
    again.client()
    assert list(again.outcomes().values()) == ["done"]


def test_acknowledged_deliveries_of_an_earlier_epoch_change_nothing(rig):
    session = rig.join()
    rig.submit()
    run_all(rig, session)
    rig.tell(ev.FromClient(1, m.ResultAck(EPOCH + 1, 1)))
    rig.write()
    assert kinds(rig) == "cs"
