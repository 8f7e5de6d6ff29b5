"""Children: what a task keeps on its way, and WaitFor. Rows W51 and W52, as lists of events."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.hub.journal import is_durable
from taskmesh.wire import messages as m
from taskmesh.wire.runs import AWAIT, PROMISE, PROMISE_NAME, Failed, LimitRule, Run, Spec
from tests.core.rig import HubRig, number_of, spec

CHILD = spec("child", on_client_loss="cancel")
FAILING = spec("failing", on_client_loss="cancel", max_retries=0)
PROMISED = Spec(b"", PROMISE_NAME, kind=PROMISE, keep=60.0, on_client_loss="cancel")
PARENT = spec("parent", resume=True, max_retries=3, jitter=False, backoff=0.2)
SLOT, OTHER_SLOT = 10, 11


class FamilyRig(HubRig):
    """A hub with a pool, a client, and slots that are clients."""

    def __init__(self) -> None:
        super().__init__(first=True)  # no other hub was before it
        for client in (1, 2, SLOT, OTHER_SLOT):
            self.client(client)
        self.pool = self.join(slots=8)
        (self.parent,) = self.submit(one=PARENT)
        self.attempt = 1

    def child(
        self, key: str = "k", client: int = SLOT, one: Spec = CHILD, parent: int = 0, needs: tuple = ()
    ) -> int:
        self._next[client] += 1
        self._submits[client] += 1
        seq = self._next[client]
        run = Run(number_of(one), 0, [seq], [b"call"], key, parent=(1, parent or self.parent))
        run.is_child = one is not PROMISED
        run.needs = [list(needs)] if needs else []
        self.tell(ev.FromClient(client, m.Submit(self._submits[client], [(number_of(one), one)], [run])))
        return seq

    def await_keys(self, *keys: tuple[str, str], delay: float = 0.0) -> None:
        failed = Failed(1, self.parent, self.attempt, AWAIT, retry_after=delay, awaits=list(keys))
        self.report(self.pool, failed=(failed,))

    def after(self, seconds: float) -> None:
        """Let time pass, in which the pool beats."""
        for _ in range(round(seconds / 0.2)):
            super().after(0.2)
            self.beat(self.pool)

    def again(self) -> None:
        """The parent's attempt fails, and the next one begins."""
        self.fail(self.pool, (1, self.parent, self.attempt))
        self.after(2.0)
        self.attempt += 1
        assert (1, self.parent, self.attempt) in self.held[self.pool]

    def bye(self, client: int = SLOT) -> None:
        self.tell(ev.FromClient(client, m.ClientBye(cancel=False)))
        self.after(0.4)

    def succeed(self, client: int, seq: int, attempt: int = 1) -> None:
        self.report(self.pool, done=((client, seq, attempt),))

    def fulfil(self, key: str = "k") -> None:
        self.tell(ev.FromClient(2, m.Fulfil(len(self.told[2]), key, b"value", 60.0)))


@pytest.fixture
def rig() -> FamilyRig:
    return FamilyRig()


class TestChildren:
    def test_another_attempt_gets_the_outcome_of_one_that_has_ended(self, rig):
        first = rig.child()
        rig.succeed(SLOT, first)
        rig.bye()
        rig.again()

        assert rig.outcomes(OTHER_SLOT) == {}
        second = rig.child(client=OTHER_SLOT)
        assert rig.outcomes(OTHER_SLOT) == {second: "done"}

    def test_another_attempt_joins_one_on_its_way(self, rig):
        first = rig.child()
        rig.bye()
        assert rig.state(SLOT, first) == "SENT"
        rig.again()
        second = rig.child(client=OTHER_SLOT)
        rig.succeed(SLOT, first)

        assert rig.outcomes(OTHER_SLOT) == {second: "done"}
        assert len([key for keys in rig.held.values() for key in keys]) == 1  # the parent

    def test_one_that_depends_on_another_outlives_their_slot(self, rig):
        first = rig.child("a")
        second = rig.child("b", needs=(first,))
        rig.bye()
        assert rig.state(SLOT, second) == "WAITING"
        rig.succeed(SLOT, first)
        assert rig.state(SLOT, second) == "SENT"

    def test_what_is_not_asked_for_again_ends_with_the_parent(self, rig):
        first = rig.child()
        rig.bye()
        rig.again()
        rig.report(rig.pool, done=((1, rig.parent, 2),))
        rig.after(0.4)

        assert rig.state(SLOT, first) == "finished"
        assert rig.outcomes(1) == {rig.parent: "done"}
        assert not rig.hub.state.ledger.tasks

    @pytest.mark.parametrize("how", ["cancel", "bye"])
    def test_children_end_with_a_parent_that_is_given_up(self, rig, how):
        first = rig.child()
        if how == "cancel":
            rig.cancel(1, rig.parent)
        else:
            rig.tell(ev.FromClient(1, m.ClientBye(cancel=True)))
        rig.after(0.4)

        assert rig.state(SLOT, first) == "finished"
        assert rig.outcomes(SLOT) == {first: "cancelled"}

    def test_outcomes_are_forgotten_with_the_parent(self, rig):
        rig.succeed(SLOT, rig.child())
        assert rig.hub.state.ledger.held > 0
        rig.report(rig.pool, done=((1, rig.parent, 1),))

        assert rig.hub.state.ledger.held == 0
        rig.child(client=OTHER_SLOT)
        assert rig.outcomes(OTHER_SLOT) == {}

    def test_the_attempt_itself_may_cancel_one(self, rig):
        first = rig.child()
        rig.cancel(SLOT, first)

        assert rig.state(SLOT, first) == "finished"
        assert rig.state(SLOT, rig.child()) != "finished"

    def test_an_error_that_may_not_come_again_is_tried_again(self, rig):
        first = rig.child(one=FAILING)
        rig.fail(rig.pool, (SLOT, first, 1))
        rig.again()
        second = rig.child(client=OTHER_SLOT, one=FAILING)
        assert rig.state(OTHER_SLOT, second) == "SENT"

        rig.fail(rig.pool, (OTHER_SLOT, second, 1), retryable=False)
        rig.again()
        third = rig.child(one=FAILING)
        assert rig.outcomes(SLOT)[third] == "exception"

    def test_of_a_parent_that_is_over_it_is_bound_to_its_client(self, rig):
        rig.report(rig.pool, done=((1, rig.parent, 1),))
        first = rig.child()
        rig.bye()
        assert rig.state(SLOT, first) == "finished"

    def test_an_outcome_that_has_no_room_is_not_kept(self):
        rig = FamilyRig()
        rig.hub.state.children._client_bytes = 10
        rig.succeed(SLOT, rig.child())
        assert rig.hub.state.ledger.held == 0
        rig.again()
        assert rig.state(OTHER_SLOT, rig.child(client=OTHER_SLOT)) == "SENT"


class TestWaitFor:
    def test_a_task_waits_without_a_slot_and_runs_again_uncharged(self, rig):
        first = rig.child()
        rig.await_keys(("child", "k"))
        rig.after(1.0)
        assert rig.state(1, rig.parent) == "WAITING"
        assert rig.held[rig.pool] == [(SLOT, first, 1)]

        rig.succeed(SLOT, first)
        assert rig.held[rig.pool] == [(1, rig.parent, 2)]
        record = rig.hub.state.ledger.tasks[1 << 64 | rig.parent]
        assert (record.errors, record.begun) == (0, 2)

    def test_it_waits_for_the_last_of_several_whatever_their_ends(self, rig):
        first, second = rig.child("a"), rig.child("b", one=FAILING)
        rig.await_keys(("child", "a"), ("failing", "b"))
        rig.fail(rig.pool, (SLOT, second, 1), retryable=False)
        assert rig.state(1, rig.parent) == "WAITING"
        rig.succeed(SLOT, first)
        assert rig.state(1, rig.parent) == "SENT"

    def test_a_promise_is_kept_while_its_slot_is_gone(self, rig):
        promise = rig.child(one=PROMISED)
        rig.cancel(SLOT, promise)
        rig.await_keys((PROMISE_NAME, "k"))
        rig.bye()
        assert rig.state(1, rig.parent) == "WAITING"
        rig.fulfil()

        assert rig.state(1, rig.parent) == "SENT"
        assert rig.outcomes(OTHER_SLOT) == {}
        again = rig.child(client=OTHER_SLOT, one=PROMISED)
        assert rig.outcomes(OTHER_SLOT) == {again: "done"}

    def test_a_promise_that_nobody_waits_for_ends_with_the_task(self, rig):
        promise = rig.child(one=PROMISED)
        rig.cancel(SLOT, promise)
        rig.report(rig.pool, done=((1, rig.parent, 1),))
        rig.after(0.4)
        assert not rig.hub.state.ledger.tasks

    def test_a_promise_that_others_wait_for_stays(self, rig):
        promise = rig.child(one=PROMISED)
        (other,) = rig.submit(2, one=PROMISED, key="k", size=0)
        rig.cancel(SLOT, promise)
        rig.report(rig.pool, done=((1, rig.parent, 1),))
        rig.after(0.4)
        assert rig.state(2, other) == "WAITING"

    def test_a_time(self, rig):
        rig.await_keys(delay=5.0)
        rig.after(4.0)
        assert rig.state(1, rig.parent) == "WAITING"
        rig.after(1.4)
        assert rig.state(1, rig.parent) == "SENT"

    def test_a_time_and_others(self, rig):
        first = rig.child()
        rig.await_keys(("child", "k"), delay=5.0)
        rig.succeed(SLOT, first)
        assert rig.state(1, rig.parent) == "WAITING"
        rig.after(5.4)
        assert rig.state(1, rig.parent) == "SENT"

    def test_what_has_ended_is_not_waited_for(self, rig):
        rig.succeed(SLOT, rig.child())
        rig.await_keys(("child", "k"))
        rig.after(0.4)
        assert rig.state(1, rig.parent) == "SENT"

    def test_again_and_again(self, rig):
        for attempt in range(1, 6):
            rig.attempt = attempt
            seq = rig.child(f"k{attempt}")
            rig.await_keys(("child", f"k{attempt}"))
            assert rig.state(1, rig.parent) == "WAITING"
            rig.succeed(SLOT, seq)
            assert rig.state(1, rig.parent) == "SENT"

    def test_it_may_be_cancelled_meanwhile(self, rig):
        first = rig.child()
        rig.await_keys(("child", "k"))
        rig.cancel(1, rig.parent)
        rig.after(0.4)
        assert not rig.hub.state.ledger.tasks
        assert rig.outcomes(SLOT) == {first: "cancelled"}

    def test_it_does_not_expire_while_it_waits(self):
        rig = FamilyRig()
        (rig.parent,) = rig.submit(one=spec("timed", expires=1.0))
        rig.await_keys(delay=5.0)
        rig.after(6.0)
        assert rig.state(1, rig.parent) == "SENT"

    def test_an_older_attempt_cannot_have_it_wait(self, rig):
        rig.again()
        rig.attempt = 1
        rig.await_keys(delay=5.0)
        assert rig.state(1, rig.parent) == "SENT"

    def test_the_reason_is_told(self, rig):
        rig.child(one=PROMISED)
        rig.await_keys((PROMISE_NAME, "k"))
        why = rig.hub.views.tasks.task(f"{1:016x}{rig.parent:016x}", rig.now)["why"]
        assert why == "its last attempt has ended to wait for k (WaitFor)"

    def test_a_limit_on_tasks_at_a_time_is_free_meanwhile(self, rig):
        limited = spec("limited", limits=(LimitRule("gpu", 1),))
        rig.parent, other = rig.submit(count=2, one=limited)
        assert (rig.state(1, rig.parent), rig.state(1, other)) == ("SENT", "QUEUED")
        rig.await_keys(delay=5.0)
        rig.after(0.2)
        assert (rig.state(1, rig.parent), rig.state(1, other)) == ("WAITING", "SENT")


class TestDetached:
    """A child with detach=True: another attempt finds it, and it does not end with its parent."""

    DETACHED = spec("detached", detach=True, keep=60.0)

    def test_another_attempt_finds_it_on_its_way(self, rig):
        first = rig.child(one=self.DETACHED)
        rig.bye()
        rig.again()
        second = rig.child(client=OTHER_SLOT, one=self.DETACHED)
        assert [key for key in rig.held[rig.pool] if key[0] != 1] == [(SLOT, first, 1)]
        rig.succeed(SLOT, first)
        assert rig.outcomes(OTHER_SLOT) == {second: "done"}

    @pytest.mark.parametrize("end", ["succeeds", "fails"])
    def test_it_goes_on_after_the_end_of_its_parent(self, rig, end):
        child = rig.child(one=self.DETACHED)
        bound = rig.child("other")
        if end == "succeeds":
            rig.succeed(1, rig.parent)
        else:
            rig.fail(rig.pool, (1, rig.parent, 1), retryable=False)
        rig.bye()
        tasks = rig.hub.state.ledger.tasks
        assert (SLOT << 64 | child in tasks, SLOT << 64 | bound in tasks) == (True, False)
        rig.succeed(SLOT, child)
        assert rig.hub.state.result_cache.of_task(SLOT << 64 | child, rig.now)

    def test_it_is_in_the_journal(self):
        assert is_durable(self.DETACHED, Run(1, 0, [1], [b""], "k", parent=(1, 1)))
        assert not is_durable(spec("attached"), Run(1, 0, [1], [b""], "k", parent=(1, 1)))
