"""Tasks of clients that have left go on; results of those that stand still wait for them."""

import pytest

from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import CHUNK, SINK_VALUE, SINK_VALUE_NAME, Run, Spec
from tests.core.rig import EPOCH, HubRig, spec


def run_all(rig: HubRig, session: int) -> int:
    """Has the pool finish what it holds until it gets no more; returns how many that were."""
    count = 0
    while rig.held[session]:
        done = tuple(rig.held[session])
        rig.report(session, done=done)
        count += len(done)
    return count


def kept(rig: HubRig, who: int) -> int:
    session = rig.hub.state.clients.get(who)
    return session.size if session is not None else 0


def test_tasks_of_a_client_that_said_goodbye_run_and_then_nothing_of_it_is_left():
    rig = HubRig()
    rig.client(1)
    rig.submit(1, 20)
    rig.tell(ev.FromClient(1, m.ClientBye(cancel=False)))
    assert rig.hub.snapshot()["orphans"] == 20
    rig.after(100.0)

    assert run_all(rig, rig.join()) == 20
    rig.after(1.0)
    assert rig.hub.snapshot()["orphans"] == 0
    assert 1 not in rig.hub.state.ledger.accounts
    assert 1 not in rig.hub.state.clients


def test_tasks_of_a_client_that_was_killed_outlive_the_time_for_which_outcomes_wait():
    """With result_ttl=15, 89 of 120 accepted tasks never ran."""
    rig = HubRig(result_ttl=15.0)
    rig.client(1)
    rig.submit(1, 20)
    session = rig.join(slots=2)
    rig.report(session, done=tuple(rig.held[session]))
    rig.tell(ev.ClientGone(1))
    for _ in range(20):
        rig.after(1.0)
        rig.beat(session)

    assert kept(rig, 1) == 0
    assert run_all(rig, session) == 18
    (dropped,) = [record for record in rig.records if record.kind == "outcomes.dropped"]
    assert dropped.fields["tasks"] == 18
    assert dropped.fields["bytes"] > 0


def test_results_that_nobody_takes_are_dropped_and_the_tasks_go_on():
    """With a cap of 16 MiB, 168 of 200 tasks with a result of 1 MB never ran."""
    rig = HubRig(client_max_bytes=200)
    rig.client(1)
    rig.submit(1, 30)
    rig.tell(ev.ClientGone(1))
    session = rig.join()
    ran = 0
    for _ in range(40):
        ran += run_all(rig, session)
        rig.after(0.4)
        rig.beat(session)

    assert ran == 30
    assert kept(rig, 1) <= 200


@pytest.mark.parametrize("finished", [0, 4])
def test_a_client_that_is_back_after_its_outcomes_were_dropped_gets_each_all_the_same(finished):
    rig = HubRig(result_ttl=5.0)
    rig.client(1)
    seqs = rig.submit(1, 6)
    session = rig.join(slots=4)
    first = tuple(rig.held[session][:finished])
    rig.report(session, done=first)
    rig.tell(ev.ClientGone(1))
    for _ in range(8):
        rig.after(1.0)
        rig.beat(session)
    running = tuple(rig.held[session])
    rig.told[1].clear()
    rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH, first=2)))
    assert not rig.told[1][0].session  # so it says Hello once more, and submits all that it waits for
    rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH, first=2)))

    run = Run(1, 0, seqs, [b"x" * 8] * 6, again=True)
    run.spec = rig.tasks[1 << 64 | seqs[-1]].spec.number
    rig.tell(ev.FromClient(1, m.Submit(2, [], [run], whole=True)))
    assert set(running) <= set(rig.held[session])  # what was on its way is found, not sent again
    for _ in range(5):
        run_all(rig, session)
        rig.after(1.0)
        rig.beat(session)
    assert rig.outcomes(1) == dict.fromkeys(seqs, "done")


def test_results_of_clients_that_stand_still_wait_within_their_credit():
    """636 of 1,400 finished tasks were run again; nothing is dropped, no more is run."""
    rig = HubRig(result_bytes=1000, client_max_bytes=600, client_grace=2.0)
    session = rig.join(slots=4)
    clients = [rig.client(who, credit=500) for who in range(1, 5)]
    seqs = {who: rig.submit(who, 30) for who in clients}
    ran = 0
    for _ in range(40):  # silent, and their links stand
        rig.report(session, done=(taken := tuple(rig.held[session])), elapsed=1.5)
        ran += len(taken)
        rig.after(0.4)
        rig.beat(session)
    waiting = sum(kept(rig, who) for who in clients)
    assert 1000 < waiting < 1600  # the cap, and what was on its way
    assert waiting == ran * 33
    assert not [record for record in rig.records if record.kind == "outcomes.dropped"]

    for _ in range(400):
        for who in clients:
            delivered = [msg for msg in rig.told[who] if isinstance(msg, m.Deliver)]
            rig.tell(ev.FromClient(who, m.ResultAck(EPOCH, max(msg.number for msg in delivered))))
        rig.report(session, done=tuple(rig.held[session]), elapsed=1.5)
        rig.beat(session)
        rig.after(0.3)
        if not rig.tasks:
            break
    for who in clients:
        assert rig.outcomes(who) == dict.fromkeys(seqs[who], "done")


def test_one_that_turns_out_to_be_gone_is_not_waited_for():
    """Its link was only seen to be gone when something was sent: the tasks do not wait for `result_ttl`."""
    rig = HubRig(client_max_bytes=200, client_grace=2.0, client_silence=4.0)
    rig.client(1)
    rig.submit(1, 30)
    session = rig.join()
    for _ in range(20):
        run_all(rig, session)
        rig.after(0.4)
        rig.beat(session)
    rig.told[1].clear()
    rig.after(0.5)
    assert rig.told[1]  # is it there?
    rig.tell(ev.ClientGone(1))
    for _ in range(40):
        run_all(rig, session)
        rig.after(0.4)
        rig.beat(session)
    assert not rig.tasks


def test_a_chunk_of_a_client_that_has_left_runs_again_when_its_slot_dies():
    """One slot was killed, and 25 items of a map whose client had left never ran."""
    rig = HubRig()
    rig.client(1)
    rig.submit(1, 1, one=spec("chunk", kind=CHUNK))
    session = rig.join()
    rig.tell(ev.FromClient(1, m.ClientBye(cancel=False)))
    for attempt in (1, 2):
        assert rig.held[session] == [(1, 1, attempt)]
        rig.fail(session, (1, 1, attempt), "crash", retryable=False)
    assert rig.held[session] == [(1, 1, 3)]
    rig.fail(session, (1, 1, 3), "crash", retryable=False)
    assert rig.held[session] == []  # the crash limit


def test_a_chunk_of_a_client_that_is_there_is_split_by_it():
    rig = HubRig()
    rig.client(1)
    rig.submit(1, 1, one=spec("chunk", kind=CHUNK))
    session = rig.join()
    rig.fail(session, (1, 1, 1), "crash", retryable=False)
    assert rig.outcomes(1) == {1: "crash"}


@pytest.mark.parametrize("heard", [False, True])
def test_a_chunk_runs_again_whose_client_was_gone_before_it_heard_of_the_crash(heard):
    """It was killed a moment ago, and the hub does not know."""
    rig = HubRig()
    rig.client(1)
    rig.submit(1, 2, one=spec("chunk", kind=CHUNK))
    session = rig.join()
    rig.fail(session, (1, 1, 1), "crash", retryable=False)
    assert rig.outcomes(1) == {1: "crash"}
    if heard:
        rig.tell(ev.FromClient(1, m.ResultAck(EPOCH, 1)))
    rig.tell(ev.ClientGone(1))

    assert rig.held[session] == [(1, 2, 1)] + ([] if heard else [(1, 1, 2)])
    rig.report(session, done=tuple(rig.held[session]))
    rig.after(100.0)
    assert not rig.tasks


@pytest.mark.parametrize("who", ["client", "operator"])
def test_a_chunk_that_was_given_up_before_its_client_was_gone_does_not_run_again(who):
    """It had crashed, and was kept until its client had heard that it is to split it."""
    rig = HubRig()
    rig.client(1)
    rig.submit(1, 1, one=spec("chunk", kind=CHUNK))
    session = rig.join()
    rig.fail(session, (1, 1, 1), "crash", retryable=False)
    if who == "client":
        rig.cancel(1, 1)
    else:
        rig.client(2)
        rig.tell(ev.FromClient(2, m.Command(1, "cancel-client", f"{1:016x}")))
    rig.tell(ev.FromClient(1, m.ClientBye(cancel=False)))

    assert rig.held[session] == []
    assert not rig.tasks


def test_a_chunk_runs_again_whose_spec_was_forgotten_and_has_come_anew():
    """Its spec had no live task, made room for others, and another client has brought it again."""
    rig = HubRig(spec_bytes=1000)
    rig.client(1)
    rig.client(2)
    chunk = spec("chunk", kind=CHUNK)
    rig.submit(1, 1, one=chunk)
    session = rig.join()
    rig.fail(session, (1, 1, 1), "crash", retryable=False)
    (number,) = rig.hub.state.specs
    for name in "abcdefgh":
        rig.submit(2, 1, one=spec(name))
        rig.report(session, done=tuple(rig.held[session]))
    rig.after(0.5)
    assert number not in rig.hub.state.specs
    rig.submit(2, 1, one=chunk)
    rig.tell(ev.ClientGone(1))

    rig.report(session, done=tuple(rig.held[session]))
    assert not rig.tasks
    assert rig.hub.state.specs[number].live == 0


@pytest.mark.parametrize("gone", [True, False])
def test_a_client_that_is_back_finds_the_chunk_that_it_was_to_split(gone):
    rig = HubRig(lease=1.0)
    rig.client(1)
    rig.submit(1, 1, one=spec("chunk", kind=CHUNK))
    session = rig.join()
    rig.fail(session, (1, 1, 1), "crash", retryable=False)
    if gone:
        rig.tell(ev.ClientGone(1))
        assert rig.held[session] == [(1, 1, 2)]
    rig.told[1].clear()
    rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH, first=2)))
    assert rig.told[1][0].session == (0 if gone else 1)
    if not gone:
        assert rig.outcomes(1) == {1: "crash"}
        return
    number = rig.tasks[1 << 64 | 1].spec.number
    run = Run(number, 0, [1], [b"x" * 8], again=True)
    rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH, first=2)))
    rig.tell(ev.FromClient(1, m.Submit(2, [], [run], whole=True)))
    rig.report(session, done=((1, 1, 2),))
    assert rig.outcomes(1) == {1: "done"}


def test_what_a_dead_client_sent_last_starts_nothing():
    """Seed 790952661407: its Hello and a Submit that it had repeated came after the word of its death."""
    rig = HubRig()
    rig.client(1)
    rig.submit(1, 1, one=spec("chunk", kind=CHUNK))
    session = rig.join()
    rig.fail(session, (1, 1, 1), "crash", retryable=False)  # for its client to split, which has gone
    rig.tell(ev.ClientGone(1))
    rig.report(session, done=((1, 1, 2),))
    assert not rig.tasks
    entry = rig.hub.state.specs[next(iter(rig.hub.state.specs))]

    rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH)))
    rig.tell(ev.FromClient(1, m.Submit(1, [(entry.number, entry.spec)], [Run(entry.number, 0, [1], [b"x"])])))

    assert not rig.tasks


def test_what_a_slots_tasks_have_submitted_ends_with_the_slot():
    """B1: of another pool's slot, or another process, nothing does."""
    rig = HubRig()
    session = rig.join("p")
    for client, slot in ((5, "p/77"), (6, "p/78"), (7, "q/77")):
        rig.tell(ev.FromClient(client, m.ClientHello(client, 0, slot=slot)))
        rig.submit(client, 2, spec(on_client_loss="cancel"))
    rig.tell(ev.FromPool(m.SlotGone(EPOCH, session, 77)))
    rig.tell(ev.Tick())

    assert {record.id >> 64 for record in rig.tasks.values()} == {6, 7}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_clients_that_have_left_their_tasks_to_the_hub_take_no_place(is_restarted):
    rig = HubRig(journaled=True, max_clients=2)
    rig.tell(ev.JournalRead({}, 0.0))

    def comes(client: int) -> m.ClientWelcome | m.ClientRefused:
        rig.tell(ev.FromClient(client, m.ClientHello(client, 0, credit=1 << 20), "ada"))
        return rig.told[client][-1]

    for client in (1, 2, 3, 4):
        assert isinstance(comes(client), m.ClientWelcome)
        rig.submit(client, one=spec(detach=True, keep=60.0))
        rig.tell(ev.FromClient(client, m.ClientBye(cancel=False)))
    rig.write()
    if is_restarted:
        entries = rig.journal
        rig = HubRig(journaled=True, max_clients=2)
        rig.tell(ev.JournalRead(entries, 0.0))
    assert isinstance(comes(5), m.ClientWelcome)
    assert isinstance(comes(6), m.ClientWelcome)
    assert isinstance(comes(7), m.ClientRefused)


BOUND_VALUE = Spec(b"", SINK_VALUE_NAME, kind=SINK_VALUE, sink="s", on_client_loss="cancel")


@pytest.mark.parametrize("is_taken", [False, True])
def test_values_in_a_sink_that_are_bound_to_a_client_end_with_its_tasks(is_taken):
    """They stayed for `result_ttl` where outcomes waited for the client."""
    rig = HubRig(client_grace=2.0)
    rig.client(1)
    rig.client(2)
    rig.submit(1, 1, spec(on_client_loss="cancel"))
    bound = rig.submit(1, 3, BOUND_VALUE)
    if is_taken:
        rig.tell(ev.FromClient(2, m.SinkReport("s", 1, 1, 0, 1000)))
    assert [sink["unacknowledged"] for sink in rig.hub.state.sinks.view()] == [3 if is_taken else 0]
    rig.tell(ev.ClientGone(1))
    rig.after(2.5)
    if is_taken:
        rig.tell(ev.FromClient(2, m.SinkReport("s", 1, 2, 0, 1000, closed=True)))

    assert rig.hub.state.sinks.view() == []
    rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH)))
    found = rig.outcomes(1)
    assert [found[seq] for seq in bound] == ["cancelled"] * 3
