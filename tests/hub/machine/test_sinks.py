"""Sinks at the hub: outcomes are shared among consumers, and kept until one has acknowledged them."""

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.books.sinks import MOST_OUTCOMES, Sinks
from taskmesh.hub.machine.sink_values import TIDY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import SINK_VALUE, SINK_VALUE_NAME, DoneRun, Run, Spec
from tests.core.rig import EPOCH, HubRig, number_of, spec

LEASE = 3.0
SUBMITTER, ONE, OTHER = 1, 2, 3
TO_SINK = spec(sink="s")
PUT = Spec(b"", SINK_VALUE_NAME, kind=SINK_VALUE, sink="s")
MANY = 1 << 20


class Consumer:
    """One that takes from sink `s`, and acknowledges when it is told to."""

    def __init__(self, rig: HubRig, client: int, credit: int = MANY) -> None:
        self.rig, self.client, self.credit = rig, client, credit
        self.generation = self.number = self.received = 0
        self.has: list[tuple[int, int]] = []
        self.failed: dict[int, str] = {}
        self.seen = 0
        self.known = True
        rig.client(client)
        self.begin()

    def begin(self) -> None:
        self.generation += 1
        self.number = self.received = 0
        self.has.clear()
        self.report()

    def report(self, acked: list[tuple[int, int]] | None = None, *, closed: bool = False) -> None:
        self.number += 1
        self.say(self.number, acked or [], closed=closed)

    def say(self, number: int, acked: list[tuple[int, int]], *, closed: bool = False) -> None:
        report = m.SinkReport("s", self.generation, number, self.received, self.credit, acked, closed)
        self.rig.tell(ev.FromClient(self.client, report))
        self.take()

    def take(self) -> None:
        """Take in what has been sent since."""
        told = self.rig.told[self.client]
        for message in told[self.seen :]:
            if isinstance(message, m.SinkReportAck):
                self.known = message.known
            if not isinstance(message, m.SinkDeliver) or message.number != self.received + 1:
                continue
            self.received = message.number
            self.has += [(run.client, seq) for run in message.done for seq in run.seqs]
            for failure in message.failed:
                self.has.append((failure.client, failure.seq))
                self.failed[failure.seq] = failure.kind
        self.seen = len(told)

    def ack(self, *seqs: int) -> None:
        self.take()
        acked = [task for task in self.has if task[1] in seqs]
        self.has = [task for task in self.has if task[1] not in seqs]
        self.report(acked)

    @property
    def seqs(self) -> list[int]:
        self.take()
        return sorted(seq for _, seq in self.has)


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig(lease=LEASE)
    rig.client(SUBMITTER)
    return rig


def run_all(rig: HubRig, session: int) -> None:
    while rig.held[session]:
        rig.report(session, done=tuple(rig.held[session]))


def produce(rig: HubRig, count: int) -> list[int]:
    """Submit tasks whose outcomes go to the sink, and run them."""
    session = rig.session() if rig.hub.state.lanes else rig.join()
    seqs = rig.submit(SUBMITTER, count, TO_SINK)
    run_all(rig, session)
    return seqs


def live(rig: HubRig, seconds: float, *consumers: Consumer) -> None:
    """Let time pass in which the pool, the submitter and these consumers live."""
    end = rig.now + seconds
    while rig.now < end:
        rig.after(0.5)
        rig.tell(ev.FromClient(SUBMITTER, m.ClientBeat(EPOCH)))
        if rig.hub.state.lanes:
            rig.beat(rig.session())
        for consumer in consumers:
            consumer.say(0, [])


def test_an_outcome_goes_to_the_sink_and_its_client_hears_of_it_once_it_is_acknowledged(rig):
    one = Consumer(rig, ONE)

    seqs = produce(rig, 3)

    assert one.seqs == seqs
    assert rig.outcomes(SUBMITTER) == {}
    one.ack(seqs[1])
    assert rig.outcomes(SUBMITTER) == {seqs[1]: "done"}
    one.ack(*seqs)
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")
    (sink,) = rig.hub.state.sinks.view()
    assert (sink["bytes"], sink["unacknowledged"], sink["acknowledged"]) == (0, 0, 3)


def test_the_client_is_sent_no_result(rig):
    one = Consumer(rig, ONE)
    seqs = produce(rig, 2)
    one.ack(*seqs)

    delivered = [message for message in rig.told[SUBMITTER] if isinstance(message, m.Deliver)]

    assert [payload for message in delivered for run in message.done for payload in run.payloads] == [
        b"",
        b"",
    ]


def test_a_bad_end_goes_there_too_but_not_a_cancellation(rig):
    session, one = rig.join(), Consumer(rig, ONE)
    bad, given_up = rig.submit(SUBMITTER, 2, TO_SINK)
    rig.cancel(SUBMITTER, given_up)
    rig.fail(session, (SUBMITTER, bad, 1), retryable=False)

    assert one.seqs == [bad]
    assert one.failed == {bad: "exception"}
    one.ack(bad)
    assert rig.outcomes(SUBMITTER) == {bad: "exception"}


def test_outcomes_wait_for_somebody_to_come(rig):
    seqs = produce(rig, 5)

    assert Consumer(rig, ONE).seqs == seqs


def test_consumers_share_by_credit(rig):
    one, other = Consumer(rig, ONE, credit=1), Consumer(rig, OTHER, credit=1)

    seqs = produce(rig, 4)

    assert len(one.seqs) == len(other.seqs) == 1, "each has one more than nothing"
    one.ack(*one.seqs)
    assert len(one.seqs) == 1
    while one.seqs or other.seqs:
        one.ack(*one.seqs)
        other.ack(*other.seqs)
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")


def test_a_run_is_cut_where_the_credit_or_the_delivery_ends(rig):
    config = rig.config
    sinks = Sinks(config, rig.hub.state.ledger.weigh)
    run = DoneRun(1, SUBMITTER, 1, "p/0", list(range(2500)), [b"r"] * 2500, 1.0)
    sinks.put("s", "f", run)
    sinks.report(ONE, m.SinkReport("s", 1, 1, 0, MANY), 0.0)

    counts = [len(send.message.done[0].seqs) for send in sinks.deliveries(0.0)]

    assert counts == [MOST_OUTCOMES, MOST_OUTCOMES, 500]


@pytest.mark.parametrize("how", ["bye", "gone", "silent", "closed"])
def test_what_a_consumer_has_not_acknowledged_goes_to_another_in_its_order(rig, how):
    one = Consumer(rig, ONE)
    seqs = produce(rig, 6)
    one.ack(seqs[0], seqs[2])
    other = Consumer(rig, OTHER)
    assert other.seqs == []

    if how == "bye":
        rig.tell(ev.FromClient(ONE, m.ClientBye()))
    elif how == "gone":
        rig.tell(ev.ClientGone(ONE))
    elif how == "closed":
        one.report(closed=True)
    else:
        live(rig, LEASE + 1, other)

    assert other.seqs == [seqs[1], *seqs[3:]]
    other.ack(*seqs)
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")


def test_a_consumer_that_thaws_is_told_to_begin_anew_and_what_it_acknowledges_does_not_count(rig):
    one = Consumer(rig, ONE)
    seqs = produce(rig, 2)
    assert one.seqs == seqs
    live(rig, LEASE + 1)
    other = Consumer(rig, OTHER)
    assert other.seqs == seqs

    one.ack(*seqs)

    assert not one.known
    assert rig.outcomes(SUBMITTER) == {}
    one.begin()
    assert one.known
    other.ack(*seqs)
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")


def test_an_opening_that_comes_again_gives_out_nothing_under_numbers_that_were_given_out(rig):
    one = Consumer(rig, ONE)
    seqs = produce(rig, 2)
    assert one.seqs == seqs
    live(rig, LEASE + 1)
    other = Consumer(rig, OTHER)
    other.ack(seqs[0])
    other.report(closed=True)

    one.say(1, [])  # it has not heard that it was taken in
    one.ack(*seqs)

    assert not one.known
    assert rig.outcomes(SUBMITTER) == {seqs[0]: "done"}


def test_over_a_new_link_it_begins_anew_and_gets_again_what_it_had(rig):
    one = Consumer(rig, ONE)
    seqs = produce(rig, 3)
    one.ack(seqs[0])
    one.take()

    one.begin()

    assert one.seqs == seqs[1:]


def test_a_delivery_that_is_lost_comes_again_and_a_report_that_comes_twice_counts_once(rig):
    one = Consumer(rig, ONE)
    seqs = produce(rig, 2)
    one.seen = len(rig.told[ONE])  # the delivery is lost
    assert one.seqs == []

    live(rig, 2.5, one)

    assert one.seqs == seqs
    one.ack(*seqs)
    one.say(one.number, [(SUBMITTER, seq) for seq in seqs])
    (sink,) = rig.hub.state.sinks.view()
    assert sink["acknowledged"] == 2


def test_of_tasks_that_a_consumer_does_not_hold_or_says_twice_each_counts_once(rig):
    one, other = Consumer(rig, ONE, credit=1), Consumer(rig, OTHER, credit=1)
    first, second = produce(rig, 2)
    assert (one.seqs, other.seqs) == ([first], [second])

    one.report([(SUBMITTER, first), (SUBMITTER, second), (SUBMITTER, first), (OTHER, first), (0, 1 << 47)])

    assert rig.outcomes(SUBMITTER) == {first: "done"}
    assert other.seqs == [second]


def test_a_full_sink_keeps_its_tasks_waiting_and_no_others():
    cap = 20 * 33
    rig = HubRig(lease=LEASE, result_bytes=cap)
    rig.client(SUBMITTER)
    seqs = produce(rig, 40)
    (free,) = rig.submit(SUBMITTER, 1)
    run_all(rig, rig.session())

    assert rig.outcomes(SUBMITTER) == {free: "done"}
    assert 5 * 33 <= rig.hub.state.sinks.sinks["s"].size <= cap
    assert rig.state(SUBMITTER, seqs[-1]) == "QUEUED"
    assert "sink 's' is full" in rig.why(SUBMITTER, seqs[-1])
    one = Consumer(rig, ONE)
    while one.seqs:
        one.ack(*one.seqs)
        run_all(rig, rig.session())
        assert rig.hub.state.sinks.sinks["s"].size <= cap
    assert rig.outcomes(SUBMITTER) == dict.fromkeys([free, *seqs], "done")


def test_an_outcome_that_is_larger_than_a_sink_may_be_goes_through_alone():
    rig = HubRig(lease=LEASE, result_bytes=10)
    rig.client(SUBMITTER)
    one = Consumer(rig, ONE)
    seqs = produce(rig, 3)

    for seq in seqs:
        assert one.seqs == [seq]
        one.ack(seq)
        run_all(rig, rig.session())
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")


def test_a_sink_that_is_empty_and_has_no_consumer_is_forgotten(rig):
    one = Consumer(rig, ONE)
    one.ack(*produce(rig, 2))

    one.report(closed=True)

    assert rig.hub.state.sinks.sinks == {}


def test_the_submitter_s_end_does_not_end_what_is_in_the_sink(rig):
    seqs = produce(rig, 2)
    rig.tell(ev.FromClient(SUBMITTER, m.ClientBye(cancel=False)))

    one = Consumer(rig, ONE)

    assert one.seqs == seqs
    one.ack(*seqs)
    assert rig.hub.state.sinks.sinks["s"].size == 0


def test_a_consumer_closes_once_all_that_it_has_acknowledged_before_is_here(rig):
    one = Consumer(rig, ONE)
    seqs = produce(rig, 2)
    assert one.seqs == seqs

    one.say(3, [], closed=True)  # report 2 was lost
    assert rig.hub.state.sinks.sinks["s"].consumers
    one.say(2, [(SUBMITTER, seq) for seq in seqs])
    one.say(3, [], closed=True)

    assert rig.hub.state.sinks.sinks == {}
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")


@pytest.mark.parametrize("kind", ["done", "exception"])
def test_a_task_may_depend_on_one_whose_outcome_is_in_a_sink(rig, kind):
    session = rig.join()
    (first,) = rig.submit(SUBMITTER, 1, TO_SINK)
    if kind == "done":
        run_all(rig, session)
    else:
        rig.fail(session, (SUBMITTER, first, 1), retryable=False)

    second = rig.depend(client=SUBMITTER, after=(first,))

    assert not [message for message in rig.told[SUBMITTER] if isinstance(message, m.NeedValues)]
    if kind == "done":
        assert rig.state(SUBMITTER, second) == "SENT"
    else:
        assert rig.outcomes(SUBMITTER) == {second: "dependency"}


def test_what_is_in_a_sink_does_not_run_again_for_a_client_that_was_forgotten(rig):
    seqs = produce(rig, 2)
    rig.tell(ev.FromClient(SUBMITTER, m.ClientBye(cancel=False)))
    rig.client(SUBMITTER)

    run = Run(number_of(TO_SINK), 0, seqs, [b"x"] * len(seqs), again=True)
    rig.tell(ev.FromClient(SUBMITTER, m.Submit(1, [(number_of(TO_SINK), TO_SINK)], [run])))

    assert rig.tasks == {}
    one = Consumer(rig, ONE)
    one.ack(*one.seqs)
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")


def test_a_client_opens_so_many_sinks_and_those_that_are_empty_take_no_share(rig):
    sinks = Sinks(rig.config, rig.hub.state.ledger.weigh)
    every = sinks.room("s")

    known = [
        sinks.report(ONE, m.SinkReport(f"s{number}", 1, 1, 0, MANY), 0.0)[0] is not None
        for number in range(m.MOST_SINKS + 2)
    ]

    assert known == [True] * m.MOST_SINKS + [False] * 2
    assert len(sinks.sinks) == m.MOST_SINKS
    assert sinks.room("s") == every
    sinks.put("s0", "f", DoneRun(1, SUBMITTER, 1, "p/0", [1], [b"r"], 1.0))
    assert sinks.room("s") == every // 2


# --- values that clients put there by themselves ------------------------------------------------------------


def put(rig: HubRig, count: int, one: Spec = PUT, client: int = SUBMITTER) -> list[int]:
    return rig.submit(client, count, one)


def test_a_value_goes_to_its_sink_without_a_pool_and_ends_once_it_is_acknowledged(rig):
    one = Consumer(rig, ONE)

    seqs = put(rig, 3)

    assert one.seqs == seqs
    assert rig.tasks == {}
    assert rig.outcomes(SUBMITTER) == {}
    one.ack(*seqs)
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")
    (done,) = [run for send in rig.told[ONE] if isinstance(send, m.SinkDeliver) for run in send.done]
    assert (done.seqs, done.payloads, done.attempt) == (seqs, [b"x" * 8] * 3, 1)


def test_values_wait_for_room_in_their_sink_and_keep_their_order():
    cap = 20 * 40
    rig = HubRig(lease=LEASE, result_bytes=cap)
    rig.client(SUBMITTER)
    seqs = [seq for _ in range(5) for seq in put(rig, 10)]

    assert rig.hub.state.sinks.sinks["s"].size == cap
    assert [rig.state(SUBMITTER, seq) for seq in (seqs[19], seqs[20])] == ["finished", "WAITING"]
    assert "sink 's' is full" in rig.why(SUBMITTER, seqs[-1])
    assert rig.hub.state.sinks.view()[0]["full"]
    one, seen = Consumer(rig, ONE), []
    while one.seqs:
        assert rig.hub.state.sinks.sinks["s"].size <= cap
        seen.append(one.seqs[0])
        one.ack(seen[-1])
    assert seen == seqs
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")
    assert not rig.hub.state.sinks.view()[0]["full"]


def test_a_value_that_is_larger_than_a_sink_may_be_goes_through_alone():
    rig = HubRig(lease=LEASE, result_bytes=10)
    rig.client(SUBMITTER)
    one = Consumer(rig, ONE)
    seqs = put(rig, 3)

    for seq in seqs:
        assert one.seqs == [seq]
        one.ack(seq)
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")


def test_a_value_that_waits_may_be_given_up():
    rig = HubRig(lease=LEASE, result_bytes=10)
    rig.client(SUBMITTER)
    first, second, third = put(rig, 3)
    rig.cancel(SUBMITTER, second)

    one = Consumer(rig, ONE)
    one.ack(first)

    assert one.seqs == [third]
    one.ack(third)
    assert rig.outcomes(SUBMITTER) == {first: "done", third: "done"}


def test_values_that_are_given_up_at_a_full_sink_do_not_pile_up():
    rig = HubRig(lease=LEASE, result_bytes=10)
    rig.client(SUBMITTER)
    first, *_ = put(rig, 1)

    for _ in range(3):
        rig.cancel(SUBMITTER, *put(rig, TIDY))

    assert len(rig.hub.state.sink_values.waiting["s"]) <= TIDY
    (last,) = put(rig, 1)
    one = Consumer(rig, ONE)
    one.ack(first)
    assert one.seqs == [last]


def test_values_of_several_clients_go_there_as_they_come(rig):
    rig.client(OTHER)
    others = put(rig, 3, client=OTHER)
    seqs = put(rig, 2)

    one = Consumer(rig, ONE)

    assert [seq for _, seq in one.has] == [*others, *seqs]
    one.ack(*others)
    assert rig.outcomes(SUBMITTER) == dict.fromkeys(seqs, "done")
    assert rig.outcomes(OTHER) == dict.fromkeys(others, "done")


@pytest.mark.parametrize("room", [10, MANY], ids=["no room for all", "all in the sink"])
def test_values_end_with_a_client_to_which_they_are_bound_unless_a_consumer_has_them(room):
    rig = HubRig(lease=LEASE, result_bytes=room)
    rig.client(SUBMITTER)
    one = Consumer(rig, ONE, credit=1)
    bound = Spec(b"", SINK_VALUE_NAME, kind=SINK_VALUE, sink="s", on_client_loss="cancel")
    first, _, _ = put(rig, 3, bound)
    assert one.seqs == [first]

    rig.tell(ev.FromClient(SUBMITTER, m.ClientBye(cancel=False)))
    rig.after(1)

    one.ack(first)
    assert one.seqs == []
    assert rig.tasks == {}
    one.report(closed=True)
    assert rig.hub.state.sinks.sinks == {}


def test_a_value_that_is_given_up_is_taken_out_of_its_sink(rig):
    first, second, third = put(rig, 3)

    rig.cancel(SUBMITTER, second)

    one = Consumer(rig, ONE)
    assert one.seqs == [first, third]
    one.ack(first, third)
    assert rig.outcomes(SUBMITTER) == {first: "done", third: "done"}


def test_a_value_that_is_given_up_while_a_consumer_has_it_goes_to_no_other(rig):
    first, second = put(rig, 2)
    one = Consumer(rig, ONE)
    assert one.seqs == [first, second]

    rig.cancel(SUBMITTER, first, second)
    one.ack(first)
    one.report(closed=True)

    assert Consumer(rig, OTHER).seqs == []
    assert rig.hub.state.sinks.ends == {}
    assert not rig.hub.state.sinks.filled


def test_the_outcome_of_a_task_stays_in_its_sink_when_the_task_is_given_up(rig):
    seqs = produce(rig, 2)

    rig.cancel(SUBMITTER, *seqs)

    assert Consumer(rig, ONE).seqs == seqs


def test_a_client_that_puts_too_much_is_held_back():
    rig = HubRig(lease=LEASE, result_bytes=10, client_max_tasks=3)
    rig.client(SUBMITTER)
    for _ in range(4):
        put(rig, 1)

    put(rig, 1)

    assert isinstance(rig.told[SUBMITTER][-1], m.Busy)


def test_a_task_may_wait_for_a_value_to_be_in_its_sink():
    rig = HubRig(lease=LEASE, result_bytes=10)
    rig.client(SUBMITTER)
    rig.join()
    one = Consumer(rig, ONE)
    first, second = put(rig, 2)
    after = rig.depend(client=SUBMITTER, after=(second,))
    assert rig.state(SUBMITTER, after) == "WAITING"

    one.ack(first)

    assert rig.state(SUBMITTER, after) == "SENT"


def test_a_value_that_comes_again_to_another_hub_waits_for_no_pool(rig):
    rig = HubRig(epoch=EPOCH + 1)
    rig.client(SUBMITTER)
    run = Run(number_of(PUT), 0, [4, 5], [b"x", b"y"], again=True)

    rig.tell(ev.FromClient(SUBMITTER, m.Submit(1, [(number_of(PUT), PUT)], [run])))

    assert Consumer(rig, ONE).seqs == [4, 5]


def test_a_value_for_no_sink_ends_at_once(rig):
    (seq,) = put(rig, 1, Spec(b"", SINK_VALUE_NAME, kind=SINK_VALUE))

    assert rig.outcomes(SUBMITTER) == {seq: "done"}


def test_whoever_submits_under_the_key_of_a_value_that_waits_gets_it():
    rig = HubRig(lease=LEASE, result_bytes=10)
    rig.client(SUBMITTER)
    rig.client(OTHER)
    (first,) = put(rig, 1)
    (keyed,) = rig.submit(SUBMITTER, 1, PUT, key="k")
    (second,) = rig.submit(OTHER, 1, PUT, key="k")

    one = Consumer(rig, ONE)
    one.ack(first)

    assert one.seqs == [keyed]
    assert rig.outcomes(OTHER) == {second: "done"}
