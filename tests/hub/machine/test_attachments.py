"""Attachments: a client waits for another's task by its id. Lists of events."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.ids import task_id, text_of
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import ATTACHMENT, ATTACHMENT_NAME, CHUNK, Run, Spec, Value
from tests.core.rig import EPOCH, HubRig, number_of, spec

LEASE = 3.0
OWNER, OTHER, THIRD = 1, 2, 3


@pytest.fixture
def rig() -> HubRig:
    """A hub that has just been started."""
    rig = HubRig(lease=LEASE)
    for client in (OWNER, OTHER, THIRD):
        rig.client(client)
    return rig


def attach(rig: HubRig, seq: int, client: int = OTHER, *, owner: int = OWNER, text: str = "") -> int:
    """Attach to the owner's task; return the counter of the attachment."""
    one = Spec(b"", ATTACHMENT_NAME, kind=ATTACHMENT, on_client_loss="cancel")
    (own,) = rig.submit(client, one=one, key=text or text_of(task_id(owner, seq)), size=0)
    return own


def bring(rig: HubRig, seq: int) -> None:
    """The owner submits a task that it has submitted to an earlier hub."""
    rig._submits[OWNER] += 1
    run = Run(number_of(spec()), 0, [seq], [b"call"], again=True)
    rig.tell(ev.FromClient(OWNER, m.Submit(rig._submits[OWNER], [(number_of(spec()), spec())], [run])))


def wait(rig: HubRig, seconds: float) -> None:
    """Let time pass in which the clients beat."""
    end = rig.now + seconds
    while rig.now < end:
        rig.after(min(0.5, end - rig.now))
        for client in (OWNER, OTHER, THIRD):
            rig.tell(ev.FromClient(client, m.ClientBeat(EPOCH)))


def run_all(rig: HubRig, session: int) -> None:
    while rig.held[session]:
        rig.report(session, done=tuple(rig.held[session]))


def test_status_counts_tasks_and_not_who_waits_for_them(rig):
    session = rig.join()
    (seq,) = rig.submit(OWNER)
    attach(rig, seq)
    attach(rig, seq, THIRD)
    on_its_way = rig.hub.snapshot()
    run_all(rig, session)
    attach(rig, seq)
    ended = rig.hub.snapshot()

    assert (on_its_way["accepted"], on_its_way["finished"]) == (1, 0)
    assert (ended["accepted"], ended["finished"], ended["ended"]["succeeded"]) == (1, 1, 1)


def test_it_ends_as_the_other_task_does(rig):
    session = rig.join()
    good, bad = rig.submit(OWNER, 2)
    attached = attach(rig, good), attach(rig, bad)
    rig.report(session, done=((OWNER, good, 1),))
    rig.fail(session, (OWNER, bad, 1), retryable=False)

    assert rig.outcomes(OWNER) == {good: "done", bad: "exception"}
    assert rig.outcomes(OTHER) == {attached[0]: "done", attached[1]: "exception"}


def test_tasks_depend_on_it(rig):
    session = rig.join()
    (seq,) = rig.submit(OWNER)
    attached = attach(rig, seq)
    after = rig.depend(attached, client=OTHER)
    assert rig.state(OTHER, after) == "WAITING"

    rig.report(session, done=((OWNER, seq, 1),))
    rig.report(session, done=((OTHER, after, 1),))
    assert rig.outcomes(OTHER) == {attached: "done", after: "done"}
    assert [value.payload for run in rig.pushed[-1].runs for value in run.values] == [b"r"]


def test_a_task_goes_on_for_those_who_still_wait(rig):
    session = rig.join()
    (seq,) = rig.submit(OWNER)
    attached = attach(rig, seq)
    rig.cancel(OWNER, seq)
    rig.report(session, done=((OWNER, seq, 1),))
    assert rig.outcomes(OTHER) == {attached: "done"}

    (seq,) = rig.submit(OWNER)
    attached = attach(rig, seq)
    rig.cancel(OTHER, attached)
    rig.cancel(OWNER, seq)
    assert rig.state(OWNER, seq) == "finished"


@pytest.mark.parametrize("text", ["", "garbage", "0" * 32, "g" * 32, text_of(task_id(77, 1))])
def test_unknown_at_once_where_nobody_can_bring_it(rig, text):
    wait(rig, 3 * LEASE + 1)
    (seq,) = rig.submit(OWNER)
    rig.cancel(OWNER, seq)

    attached = attach(rig, seq, text=text)
    after = rig.depend(attached, client=OTHER)
    assert rig.outcomes(OTHER) == {attached: "unknown", after: "dependency"}


def test_unknown_at_once_if_it_has_ended_here(rig):
    session = rig.join()
    (seq,) = rig.submit(OWNER)
    rig.report(session, done=((OWNER, seq, 1),))

    attached = attach(rig, seq)
    assert rig.outcomes(OTHER) == {attached: "unknown"}


def test_a_part_of_a_map_is_nobodys_else(rig):
    (seq,) = rig.submit(OWNER, one=spec("part", kind=CHUNK))

    attached = attach(rig, seq)
    assert rig.outcomes(OTHER) == {attached: "unknown"}


def test_another_users_task_is_unknown():
    rig = HubRig(lease=LEASE)
    for client, user in ((OWNER, "alice"), (OTHER, "bob"), (THIRD, "alice")):
        rig.tell(ev.FromClient(client, m.ClientHello(client, 0, credit=1 << 20), user))
    one = spec()
    run = Run(number_of(one), 0, [1], [b"call"])
    rig.tell(ev.FromClient(OWNER, m.Submit(1, [(number_of(one), one)], [run]), "alice"))
    attachment = Spec(b"", ATTACHMENT_NAME, kind=ATTACHMENT)
    for client, user in ((OTHER, "bob"), (THIRD, "alice")):
        run = Run(number_of(attachment), 0, [1], [b""], text_of(task_id(OWNER, 1)))
        submit = m.Submit(1, [(number_of(attachment), attachment)], [run])
        rig.tell(ev.FromClient(client, submit, user))

    session = rig.join()
    rig.report(session, done=((OWNER, 1, 1),))
    assert rig.outcomes(OTHER) == {1: "unknown"}
    assert rig.outcomes(THIRD) == {1: "done"}


class TestAfterARestart:
    def test_it_joins_the_task_that_its_client_brings(self, rig):
        attached = attach(rig, 5), attach(rig, 5), attach(rig, 5, THIRD)
        after = rig.depend(attached[0], client=OTHER)
        assert rig.state(OTHER, attached[0]) == "WAITING"
        wait(rig, 1)
        bring(rig, 5)
        wait(rig, LEASE)
        session = rig.join()
        run_all(rig, session)

        assert rig.outcomes(OWNER) == {5: "done"}
        assert rig.outcomes(OTHER) == {attached[0]: "done", attached[1]: "done", after: "done"}
        assert rig.outcomes(THIRD) == {attached[2]: "done"}

    def test_it_joins_a_task_that_ends_at_once(self, rig):
        """The pool that has run it comes back before its client does."""
        attached = attach(rig, 5)
        after = rig.depend(attached, client=OTHER)
        session = rig.join()
        rig.report(session, done=((OWNER, 5, 1),))
        bring(rig, 5)
        assert rig.outcomes(OWNER) == {5: "done"}
        assert rig.outcomes(OTHER) == {attached: "done"}

        run_all(rig, session)
        assert rig.outcomes(OTHER) == {attached: "done", after: "done"}

    def test_nobody_brings_it(self, rig):
        attached = attach(rig, 5)
        after = rig.depend(attached, client=OTHER)
        wait(rig, 2 * LEASE)
        assert rig.outcomes(OTHER) == {}

        wait(rig, LEASE + 1)
        assert rig.outcomes(OTHER) == {attached: "unknown", after: "dependency"}

    def test_its_client_has_said_all_that_it_waits_for(self, rig):
        attached = attach(rig, 5)
        rig._submits[OWNER] += 1
        rig.tell(ev.FromClient(OWNER, m.Submit(rig._submits[OWNER], [], [], whole=True)))
        wait(rig, 1)

        assert rig.outcomes(OTHER) == {attached: "unknown"}

    def test_one_that_is_given_up_while_it_waits(self, rig):
        attached = attach(rig, 5), attach(rig, 5, THIRD)
        rig.cancel(OTHER, attached[0])
        bring(rig, 5)
        wait(rig, LEASE)
        session = rig.join()
        run_all(rig, session)
        assert rig.outcomes(THIRD) == {attached[1]: "done"}

        last = attach(rig, 6)
        rig.cancel(OTHER, last)
        wait(rig, 1)
        assert rig.state(OTHER, last) == "finished"

    def test_it_is_submitted_again_with_its_value(self, rig):
        """The client knows how it ended at the hub before."""
        (seq,) = rig.submit(OTHER)
        after = rig.depend(9, client=OTHER, values=(Value(9, b"known", ATTACHMENT_NAME),))
        session = rig.join()
        run_all(rig, session)
        assert rig.outcomes(OTHER) == {seq: "done", after: "done"}
