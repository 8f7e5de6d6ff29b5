"""Promises: tasks without a function, which somebody ends, as lists of events."""

import pytest

from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import PROMISE, PROMISE_NAME, Failed, Held, Run, Spec, Value
from tests.core.rig import EPOCH, HubRig, number_of, spec

KEEP = 3.0


def promise(rig: HubRig, key: str = "k", client: int = 1, *, expires: float = 0.0) -> int:
    one = Spec(b"", PROMISE_NAME, kind=PROMISE, keep=KEEP, expires=expires)
    (seq,) = rig.submit(client, one=one, key=key, size=0)
    return seq


def fulfil(rig: HubRig, key: str = "k", client: int = 1, failed: Failed | None = None) -> object:
    payload = b"" if failed else b"value"
    rig.tell(ev.FromClient(client, m.Fulfil(len(rig.told[client]), key, payload, KEEP, failed)))
    answer = [message for message in rig.told[client] if isinstance(message, m.Answer)][-1]
    return answer.value


def test_its_value_is_asked_for_when_the_client_has_it():
    """Seed 31199: a client that came back submitted what depends on it before it could hear of the value."""
    rig = HubRig()
    rig.client(1, credit=1)
    first, held = promise(rig, "first"), promise(rig, "held")
    for key in ("first", "held"):
        fulfil(rig, key)
    one = spec()
    run = Run(number_of(one), 0, [9], [b"x"], needs=[[held]], again=True)
    again = m.Submit(3, [(number_of(one), one)], [run])
    rig.tell(ev.FromClient(1, again))
    assert rig.outcomes() == {first: "done"}
    assert rig.told[1][-1] == m.Busy(3, 0.05)

    rig.tell(ev.FromClient(1, m.ResultAck(EPOCH, 1)))
    rig.tell(ev.FromClient(1, again))
    assert rig.told[1][-1] == m.Busy(3, 0.05)
    rig.tell(ev.FromClient(1, m.ResultAck(EPOCH, 2)))
    rig.tell(ev.FromClient(1, again))
    assert rig.told[1][-1] == m.NeedValues(3, [held])


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    rig.client(2)
    return rig


def test_it_waits_until_somebody_fulfils_it(rig):
    rig.join()
    seq = promise(rig)
    assert rig.state(1, seq) == "WAITING"
    rig.after(2)
    assert (rig.state(1, seq), rig.pushed) == ("WAITING", [])

    assert fulfil(rig, client=2) is True
    assert rig.outcomes() == {seq: "done"}


def test_the_first_outcome_counts(rig):
    seq = promise(rig)

    assert [fulfil(rig), fulfil(rig, client=2), fulfil(rig, failed=Failed(0, 0, 1, "exception"))] == [
        True,
        False,
        False,
    ]
    assert rig.outcomes() == {seq: "done"}


def test_it_may_fail(rig):
    seq = promise(rig)

    assert fulfil(rig, failed=Failed(0, 0, 1, "exception", "ValueError", "no")) is True
    assert rig.outcomes() == {seq: "exception"}
    assert fulfil(rig) is False


def test_all_who_ask_for_a_key_get_its_outcome(rig):
    seqs = promise(rig), promise(rig, client=2)
    fulfil(rig)

    assert rig.outcomes(1) == {seqs[0]: "done"}
    assert rig.outcomes(2) == {seqs[1]: "done"}


def test_fulfilled_before_somebody_asks_it_is_kept(rig):
    assert fulfil(rig) is True

    seq = promise(rig)
    assert rig.outcomes() == {seq: "done"}
    assert fulfil(rig) is False


@pytest.mark.parametrize("failed", [None, Failed(0, 0, 1, "exception", "ValueError", "no")])
def test_fulfilled_before_it_is_known_to_tasks_of_the_same_submit(rig, failed):
    rig.join()
    fulfil(rig, failed=failed)
    one, call = Spec(b"", PROMISE_NAME, kind=PROMISE, keep=KEEP), spec()
    runs = [
        Run(number_of(one), 0, [1], [b""], "k"),
        Run(number_of(call), 0, [2], [b"call"], needs=[[1]]),
    ]
    specs = [(number_of(one), one), (number_of(call), call)]
    rig.tell(ev.FromClient(1, m.Submit(1, specs, runs)))

    if failed:
        assert rig.outcomes() == {1: "exception", 2: "dependency"}
        assert not rig.hub.state.dependencies.values
    else:
        assert rig.state(1, 2) == "SENT"
        values = [value for message in rig.pushed for run in message.runs for value in run.values]
        assert [(value.seq, value.payload, value.key) for value in values] == [(1, b"value", "k")]


def test_what_is_kept_is_forgotten_in_time(rig):
    fulfil(rig)
    rig.after(KEEP + 1)

    assert rig.state(1, promise(rig)) == "WAITING"
    assert fulfil(rig) is True


def test_tasks_depend_on_it_and_get_its_value(rig):
    session = rig.join()
    seq = promise(rig)
    dependent = rig.depend(seq)
    assert rig.state(1, dependent) == "WAITING"

    fulfil(rig)
    assert rig.state(1, dependent) == "SENT"
    values = [value for message in rig.pushed for run in message.runs for value in run.values]
    assert [(value.seq, value.payload, value.key) for value in values] == [(seq, b"value", "k")]
    rig.report(session, done=((1, dependent, 1),))
    assert not rig.hub.state.dependencies.values


def test_its_failure_blocks_them(rig):
    dependent = rig.depend(promise(rig))

    fulfil(rig, failed=Failed(0, 0, 1, "exception", "ValueError", "no"))
    assert rig.outcomes()[dependent] == "dependency"


def test_it_expires(rig):
    seq = promise(rig, expires=5.0)
    dependent = rig.depend(seq)
    rig.after(6)

    assert rig.outcomes() == {seq: "expired", dependent: "dependency"}
    assert fulfil(rig) is True  # for who asks later: nobody has had another outcome than "expired"


@pytest.mark.parametrize("unstarted", [False, True])
def test_it_can_be_cancelled(rig, unstarted):
    seq = promise(rig)
    (rig.cancel_unstarted if unstarted else rig.cancel)(1, seq)

    assert rig.state(1, seq) == "finished"
    assert rig.outcomes() == ({seq: "cancelled"} if unstarted else {})


def test_no_pool_can_have_one(rig):
    seq = promise(rig)
    rig.hello(inventory=[Held(1, 1, [seq])], epoch=5)

    assert rig.state(1, seq) == "WAITING"
    session = rig.session()
    rig.report(session, done=((1, seq, 1),))
    assert rig.state(1, seq) == "WAITING"


class TestKeptValues:
    """Values that a client puts at the hub."""

    def put(self, rig: HubRig, seq: int = 1) -> Value:
        rig._next[1] = max(rig._next[1], seq)
        return Value(seq, b"v" * 100, is_kept=True)

    def test_it_stays_between_the_tasks_that_need_it(self, rig):
        session = rig.join()
        first = rig.depend(1, values=(self.put(rig),), seq=2)
        rig.report(session, done=((1, first, 1),))
        assert rig.hub.state.ledger.held == 100

        second = rig.depend(1, seq=3)
        assert rig.state(1, second) == "SENT"
        values = [value.seq for message in rig.pushed for run in message.runs for value in run.values]
        assert values == [1]  # once to the pool

    @pytest.mark.parametrize("way", ["dropped", "bye"])
    def test_it_goes_when_its_client_drops_it_or_is_gone(self, rig, way):
        session = rig.join()
        first = rig.depend(1, values=(self.put(rig),), seq=2)
        rig.report(session, done=((1, first, 1),))
        if way == "dropped":
            rig.cancel(1, 1)
        else:
            rig.tell(ev.FromClient(1, m.ClientBye()))
            rig.after(1)

        assert rig.hub.state.ledger.held == 0
        assert not rig.hub.state.dependencies.kept

    def test_dropped_while_a_task_needs_it_it_stays_until_that_has_ended(self, rig):
        first = rig.depend(1, values=(self.put(rig),), seq=2)
        rig.cancel(1, 1)
        assert rig.hub.state.ledger.held == 100

        rig.cancel(1, first)
        assert rig.hub.state.ledger.held == 0

    def test_a_hub_that_lacks_it_asks_for_it(self, rig):
        self.put(rig)
        rig.depend(1, seq=2)

        assert m.NeedValues(1, [1]) in rig.told[1]


class TestViews:
    def ask(self, rig: HubRig, what: str, argument: str) -> m.Answer:
        rig.tell(ev.FromClient(1, m.Query(7, what, argument)))
        return [message for message in rig.told[1] if isinstance(message, m.Answer)][-1]

    def order(self, rig: HubRig, verb: str, target: str) -> m.Answer:
        rig.tell(ev.FromClient(1, m.Command(8, verb, target)))
        return [message for message in rig.told[1] if isinstance(message, m.Answer)][-1]

    def test_explain_names_the_promise(self, rig):
        seq = promise(rig, "approve-42")

        why = self.ask(rig, "task", f"{1:016x}{seq:016x}").value["why"]
        assert why == "it is a promise: `taskmesh fulfil approve-42` ends it"
