"""Tasks that ignore their results, at the hub: clients are told of the success, dependents get the value."""

import copy

import pytest

from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import ATTACHMENT, ATTACHMENT_NAME, CHUNK, DONE, DoneRun, Run, Spec, Value
from tests.core.rig import EPOCH, HubRig, number_of, spec

SILENT = spec("silent", ignore_result=True)


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def payloads(rig: HubRig, client: int = 1) -> dict[int, bytes]:
    """The results that a client was sent."""
    deliveries = [message for message in rig.told[client] if isinstance(message, m.Deliver)]
    runs = [run for message in deliveries for run in message.done]
    return {seq: data for run in runs for seq, data in zip(run.seqs, run.payloads, strict=True)}


def again(rig: HubRig, *runs: Run, number: int) -> None:
    """A client brings calls for a Submit of which the hub lacks something."""
    specs = [(number_of(SILENT), SILENT), (number_of(spec()), spec())]
    rig.tell(ev.FromClient(1, m.Submit(number, specs, list(runs))))


def needing(seq: int, *needs: int) -> Run:
    return Run(number_of(spec()), 0, [seq], [b"call"], needs=[list(needs)])


def rerun(seq: int, attempts: int = 1) -> Run:
    return Run(number_of(SILENT), 0, [seq], [b"call"], again=True, rerun=attempts)


def acknowledge(rig: HubRig) -> None:
    deliveries = [said.number for said in rig.told[1] if isinstance(said, m.Deliver)]
    rig.tell(ev.FromClient(1, m.ResultAck(EPOCH, deliveries[-1])))


def pass_time(rig: HubRig, session: int, seconds: int) -> None:
    """A pool beats meanwhile."""
    for _ in range(5 * seconds):
        rig.after(0.2)
        rig.beat(session)


def test_a_client_is_told_of_the_success_alone(rig: HubRig):
    session = rig.join(slots=3)
    rig.submit(count=2, one=SILENT)
    rig.submit(count=1)
    rig.report(session, done=((1, 1, 1), (1, 2, 1), (1, 3, 1)))

    assert payloads(rig) == {1: b"", 2: b"", 3: b"r"}


def test_what_depends_on_it_gets_its_result(rig: HubRig):
    session = rig.join()
    [first] = rig.submit(one=SILENT)
    second = rig.depend(first, one=SILENT)
    third = rig.depend(second)
    rig.report(session, done=((1, first, 1),))
    rig.report(session, done=((1, second, 1),))

    assert payloads(rig) == {first: b"", second: b""}
    assert rig.values_of(second)[1][first].payload == b"r"
    assert rig.values_of(third)[1][second].payload == b"r"


def test_a_bad_end_comes_with_its_error(rig: HubRig):
    session = rig.join()
    [first] = rig.submit(one=SILENT)
    second = rig.depend(first)
    rig.fail(session, (1, first, 1), text="no")

    assert rig.outcomes() == {first: "exception", second: "dependency"}


def test_the_items_of_a_chunk_are_their_slot_s_to_leave_out(rig: HubRig):
    session = rig.join()
    rig.submit(one=spec("chunk", ignore_result=True, kind=CHUNK))
    rig.report(session, done=((1, 1, 1),))

    assert payloads(rig) == {1: b"r"}  # it says which items have failed


def test_an_attachment_gets_the_result(rig: HubRig):
    session = rig.join()
    [first] = rig.submit(one=SILENT)
    rig.client(2)
    attached = Spec(b"", ATTACHMENT_NAME, kind=ATTACHMENT)
    run = Run(number_of(attached), 0, [1], [b""], f"{1:016x}{first:016x}")
    rig.tell(ev.FromClient(2, m.Submit(1, [(number_of(attached), attached)], [run])))
    rig.report(session, done=((1, first, 1),))

    assert (payloads(rig), payloads(rig, 2)) == ({first: b""}, {1: b"r"})


class TestItIsNeededOnceMore:
    """Another task comes to depend on it when its result is gone."""

    @pytest.mark.parametrize("acknowledged", [True, False])
    def test_its_client_brings_the_call_and_it_runs_again(self, rig: HubRig, acknowledged: bool):
        session = rig.join()
        [first] = rig.submit(one=SILENT)
        rig.report(session, done=((1, first, 1),))
        if acknowledged:
            acknowledge(rig)
        rig.depend(first, seq=7)
        assert rig.told[1][-1] == m.NeedValues(2, [first])
        rig.hub.state.recovery.extend(-100.0)
        again(rig, rerun(first), needing(7, first), number=2)
        assert [rig.state(1, seq) for seq in (first, 7)] == ["SENT", "WAITING"]
        rig.report(session, done=((1, first, 2),))

        assert rig.state(1, 7) == "SENT"
        assert rig.values_of(7)[1][first].payload == b"r"
        assert rig.hub.state.ledger.reruns == 1

    def test_its_end_alone_needs_no_further_run(self, rig: HubRig):
        session = rig.join()
        [first] = rig.submit(one=SILENT)
        rig.report(session, done=((1, first, 1),))
        rig.depend(after=(first,), seq=7)
        assert rig.state(1, 7) == "SENT"  # the client may not have heard yet
        acknowledge(rig)
        rig.depend(after=(first,), seq=8, values=(Value(first),))

        assert rig.state(1, 8) == "SENT"

    def test_a_result_that_is_still_held_is_used(self, rig: HubRig):
        session = rig.join(slots=1)
        [first] = rig.submit(one=SILENT)
        second = rig.depend(first)
        rig.report(session, done=((1, first, 1),))
        again(rig, rerun(first), needing(7, first), number=3)

        assert rig.state(1, first) == "finished"
        rig.report(session, done=((1, second, 1),))
        assert rig.state(1, 7) == "SENT"
        assert rig.values_of(7)[1][first].payload == b"r"

    def test_one_that_is_on_its_way_goes_on(self, rig: HubRig):
        session = rig.join()
        [first] = rig.submit(one=SILENT)
        again(rig, rerun(first), needing(7, first), number=2)
        rig.report(session, done=((1, first, 1),))

        assert rig.state(1, 7) == "SENT"
        assert rig.hub.state.ledger.reruns == 0

    def test_a_full_hub_takes_what_it_has_had(self):
        rig = HubRig(max_tasks=2)
        rig.client()
        session = rig.join(slots=1)
        [first] = rig.submit(one=SILENT)
        rig.report(session, done=((1, first, 1),))
        rig.submit()
        again(rig, rerun(first), needing(7, first), number=3)

        assert rig.state(1, 7) == "WAITING"


def test_the_hub_after_it_runs_it_again_unless_a_pool_has_its_result():
    rig = HubRig()
    rig.client()
    session = rig.join(epoch=EPOCH - 1)
    rig.report(session, done=((1, 1, 1),))
    again(rig, rerun(1), needing(7, 1), number=1)
    rig.hub.state.recovery.extend(-100.0)
    rig.after(0.4)

    assert rig.state(1, 7) == "SENT"
    assert rig.values_of(7)[1][1].payload == b"r"
    assert payloads(rig) == {1: b""}


class TestJournal:
    def hub(self, entries: dict | None = None) -> HubRig:
        rig = HubRig(journaled=True, lease=2.0)
        rig.journal = copy.deepcopy(entries or {})
        rig.tell(ev.JournalRead(copy.deepcopy(rig.journal), 1_000_000.0))
        return rig

    def begun(self, *, heard: bool) -> tuple[HubRig, int, int]:
        """A task that has ended, and whose client has heard of it or not; and one that needs its result."""
        rig = self.hub()
        rig.client()
        [first] = rig.submit(one=SILENT)
        second = rig.depend(first)
        rig.write()
        session = rig.join(slots=1)
        rig.report(session, done=((1, first, 1),))
        if heard:
            acknowledge(rig)
        rig.after(0.5)
        rig.write()
        return rig, first, second

    @pytest.mark.parametrize("heard", [True, False])
    def test_the_next_hub_has_the_result_for_what_depends_on_it(self, heard: bool):
        rig, first, second = self.begun(heard=heard)

        after = self.hub(rig.journal)
        session = after.join()
        pass_time(after, session, 3)
        assert after.state(1, first) == "finished"
        assert after.state(1, second) == "SENT"
        assert after.values_of(second)[1][first].payload == b"r"

    def test_it_is_written_once_more_when_it_runs_again(self):
        rig = self.hub()
        rig.client()
        [first] = rig.submit(one=SILENT)
        rig.write()
        session = rig.join()
        rig.report(session, done=((1, first, 1),))
        acknowledge(rig)
        rig.write()
        assert not [key for key in rig.journal if key.startswith("c/")]
        again(rig, rerun(first), needing(7, first), number=2)
        rig.write()

        after = self.hub(rig.journal)
        assert [after.state(1, seq) for seq in (first, 7)] == ["WAITING", "WAITING"]
        session = after.join()
        pass_time(after, session, 3)
        after.report(session, done=tuple(after.held[session]))
        assert after.values_of(7)[1][first].payload == b"r"

    def test_how_it_ended_before_is_not_how_it_ends_when_it_runs_again(self):
        """Seed 250005710: that end was to be taken out of the journal, but a little later."""
        rig = self.hub()
        rig.client()
        [first, _] = rig.submit(count=2, one=SILENT)
        rig.write()
        session = rig.join()
        rig.tell(ev.ClientGone(1))
        rig.report(session, done=((1, first, 1),))
        rig.write()
        assert [key for key in rig.journal if key.startswith("o/")]
        rig.client()
        acknowledge(rig)
        again(rig, rerun(first), needing(7, first), number=2)
        rig.write()

        after = self.hub(rig.journal)
        session = after.join()
        pass_time(after, session, 3)
        after.report(session, done=tuple(after.held[session]))
        assert after.values_of(7)[1][first].payload == b"r"

    @pytest.mark.parametrize("end_is_written", [True, False])
    def test_a_task_that_is_entered_after_it_has_run_again_gets_the_result(self, end_is_written: bool):
        """One waits with the journal for its client, who alone knows of the other that it comes after."""
        rig = self.hub()
        rig.client()
        [first] = rig.submit(one=SILENT)
        rig.write()
        rig.report(rig.join(slots=1), done=((1, first, 1),))
        acknowledge(rig)
        [lost] = rig.submit(one=spec("lost", durable=False))
        if end_is_written:  # for one that needs no more
            rig.depend(after=(first, lost), seq=6, values=(Value(first),))
        run = Run(number_of(spec()), 0, [7], [b"call"], needs=[[first]], after=[[lost]], when=DONE)
        again(rig, rerun(first), number=3 + end_is_written)
        again(rig, run, number=4 + end_is_written)
        rig.write()

        later = self.hub(rig.journal)
        session = later.join()
        pass_time(later, session, 3)
        later.report(session, done=tuple(later.held[session]))
        pass_time(later, session, 6)
        assert later.state(1, 7) == "SENT"
        assert later.values_of(7)[1][first].payload == b"r"

    def test_a_result_that_comes_takes_the_place_of_the_end_alone(self):
        rig = self.hub()
        rig.client()
        [busy] = rig.submit()
        rig.depend(after=(9, busy), seq=6, values=(Value(9),))
        rig.depend(9, busy, seq=7, values=(Value(9, b"r"),))
        rig.write()

        after = self.hub(rig.journal)
        session = after.join()
        pass_time(after, session, 3)
        after.report(session, done=((1, busy, 1),))
        assert after.values_of(7)[1][9].payload == b"r"

    def test_an_outcome_that_waits_for_its_client_has_no_result(self):
        rig = self.hub()
        rig.client()
        [first] = rig.submit(one=SILENT)
        rig.write()
        rig.tell(ev.FromClient(1, m.ClientBye(cancel=False)))
        session = rig.join(slots=1)
        rig.report(session, done=((1, first, 1),))
        rig.write()

        kept = [
            entry.done for entry in rig.journal.values() if isinstance(getattr(entry, "done", None), DoneRun)
        ]
        assert [run.payloads for run in kept] == [[b""]]
