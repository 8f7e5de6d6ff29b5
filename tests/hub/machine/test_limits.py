"""Limits: what the hub decides, as lists of events."""

import itertools
import random

import pytest

from taskmesh.core import events as ev
from taskmesh.core.ids import text_of as text_of_task
from taskmesh.hub.machine.books.limits import LEEWAY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, LimitRule, Run, Spec
from tests.core.rig import EPOCH, HubRig, number_of, spec

API = LimitRule("api", 5, 1.0)
GPU = LimitRule("gpu", 2)
USER = LimitRule("user", 1, keyed=True)


def rig_with(**config: object) -> HubRig:
    """A hub that no other one was before."""
    rig = HubRig(**{"first": True, **config})
    rig.client()
    return rig


@pytest.fixture
def rig() -> HubRig:
    return rig_with()


def limited(*rules: LimitRule, name: str = "f", **options: object) -> Spec:
    return spec(name, limits=rules, **options)


def submit(rig: HubRig, one: Spec, *parts: str, again: bool = False, client: int = 1) -> list[int]:
    """Submits a task for each key in one message; returns their counters."""
    runs = []
    for part in parts:
        rig._next[client] += 1
        runs.append(Run(number_of(one), 0, [rig._next[client]], [b"call"], again=again, part=part))
    rig._submits[client] += 1
    rig.tell(ev.FromClient(client, m.Submit(rig._submits[client], [(number_of(one), one)], runs)))
    return [run.seqs[0] for run in runs]


def pushed(rig: HubRig) -> list[int]:
    return [seq for message in rig.pushed for run in message.runs for seq in run.seqs]


def wait(rig: HubRig, seconds: float, *, step: float = 0.05) -> None:
    """Lets time pass; the hub is told when it asks to be."""
    end = rig.now + seconds
    while rig.now < end:
        rig.now = max(rig.now, min(end, rig.now + step, rig.hub.deadline))
        for lane in list(rig.hub.state.lanes.values()):
            lane.heard = rig.now
        rig.tell(ev.Tick())


def finish(rig: HubRig, session: int, count: int = 1) -> None:
    rig.report(session, done=tuple(rig.held[session][:count]))


def question(rig: HubRig, message: m.Query | m.Command) -> object:
    rig.client(99)
    rig.tell(ev.FromClient(99, message))
    answer = rig.told[99][-1]
    assert isinstance(answer, m.Answer)
    return answer.error or answer.value


def task_of(rig: HubRig, seq: int, client: int = 1) -> dict[str, object]:
    found = question(rig, m.Query(1, "task", text_of_task(client << 64 | seq)))
    assert isinstance(found, dict), found
    return found


class TestRate:
    def test_no_window_has_more_starts_than_the_rate(self, rig):
        session = rig.join(slots=4)
        rig.submit(count=60, one=limited(API))
        starts = []
        chance = random.Random(1)
        for _ in range(2000):
            rig.now += chance.random() * 0.02
            rig.tell(ev.Tick())
            starts += [rig.now] * (len(pushed(rig)) - len(starts))
            if chance.random() < 0.7 and rig.held[session]:
                finish(rig, session)
            starts += [rig.now] * (len(pushed(rig)) - len(starts))
            rig.hub.state.lanes[session].heard = rig.now

        assert len(starts) == 60
        assert all(later - earlier >= 1.0 for earlier, later in zip(starts, starts[5:], strict=False))

    def test_tasks_that_begin_late_keep_it(self, rig):
        session = rig.join(slots=4)
        rig.submit(count=50, one=limited(LimitRule("api", 20, 1.0)))
        chance = random.Random(2)
        begun: list[float] = []
        while len(begun) < 50:
            wait(rig, 0.004, step=0.002)
            begun += [rig.now + chance.random() * 0.98 * LEEWAY for _ in pushed(rig)[len(begun) :]]
            while rig.held[session]:
                finish(rig, session)

        begun.sort()
        assert all(later - earlier >= 1.0 for earlier, later in zip(begun, begun[20:], strict=False))

    def test_is_used_to_the_full(self, rig):
        session = rig.join(slots=4)
        rig.submit(count=250, one=limited(LimitRule("api", 20, 1.0)))
        for _ in range(200):
            wait(rig, 0.05)
            while rig.held[session]:
                finish(rig, session)

        assert 20 * 10 * 0.97 <= len(pushed(rig)) <= 20 * 11

    def test_starts_at_the_moment_at_which_a_window_has_room(self, rig):
        session = rig.join(slots=10)
        rig.submit(count=7, one=limited(API))
        began = rig.now
        assert len(pushed(rig)) == 5
        assert rig.hub.deadline <= began + 1.0 + LEEWAY
        wait(rig, 0.99 + LEEWAY, step=0.33)
        assert len(pushed(rig)) == 5
        wait(rig, 0.011)
        assert len(pushed(rig)) == 7
        assert session

    def test_a_failed_attempt_counts_and_its_retry_as_well(self, rig):
        session = rig.join(slots=10)
        rig.submit(count=5, one=limited(API, max_retries=1, backoff=0.1, jitter=False))
        rig.fail(session, rig.held[session][0])
        wait(rig, 0.8)
        assert len(pushed(rig)) == 5
        wait(rig, 0.3)
        assert len(pushed(rig)) == 6

    def test_a_task_handed_back_unstarted_gives_its_start_back(self, rig):
        session = rig.join(slots=10)
        rig.submit(count=6, one=limited(API))
        assert len(pushed(rig)) == 5
        rig.report(session, returned=(rig.held[session][0],))
        assert len(pushed(rig)) == 6

    def test_a_smooth_rate_keeps_its_distance(self, rig):
        rig.join(slots=50)
        rig.submit(count=11, one=limited(LimitRule("api", 5, 1.0, smooth=True)))
        counts = []
        wait(rig, 0.1)
        for _ in range(10):
            counts.append(len(pushed(rig)))
            wait(rig, 0.2)

        assert counts == list(range(1, 11))


class TestConcurrency:
    def test_no_more_run_at_a_time(self, rig):
        session = rig.join(slots=8)
        rig.submit(count=5, one=limited(GPU))
        assert len(rig.held[session]) == 2
        finish(rig, session)
        assert len(rig.held[session]) == 2
        assert len(pushed(rig)) == 3

    @pytest.mark.parametrize("end", ["cancel", "fail", "crash", "retry", "return", "bye", "lease"])
    def test_every_end_of_an_attempt_frees_its_permit(self, end):
        rig = rig_with(crash_limit=1)
        session = rig.join(slots=2)
        one = limited(GPU, max_retries=1 if end == "retry" else 0, backoff=5.0)
        first, *_ = rig.submit(count=3, one=one)
        key = rig.held[session][0]
        match end:
            case "cancel":
                rig.cancel(1, first)
                rig.report(session, failed=())
            case "fail" | "retry":
                rig.fail(session, key)
            case "crash":
                rig.fail(session, key, "crash")
            case "return":
                rig.report(session, returned=(key,))
            case "bye":
                rig.tell(ev.FromPool(m.Bye(EPOCH, session, 0)))
                rig.join("q")
            case "lease":
                rig.after(rig.config.lease + 1)
                rig.join("q")
        counter = rig.hub.state.ledger.limits.counters["gpu", ""]
        held = [record.id & 7 for record in rig.tasks.values() if record.session]

        assert len(counter.holders) == len(held) == 2

    def test_a_limited_task_goes_to_an_idle_slot_only(self, rig):
        session = rig.join(slots=2)
        rig.submit(count=1, one=spec())
        finish(rig, session)  # its time is known: such tasks are sent ahead
        rig.submit(count=10, one=limited(LimitRule("api", 100, 1.0)))

        assert len(rig.held[session]) == 2

    def test_limited_tasks_find_a_slot_where_others_are_sent_ahead(self, rig):
        session = rig.join(slots=2)
        rig.submit(count=1)
        finish(rig, session)
        rig.submit(count=500)
        (late,) = rig.submit(one=limited(GPU, name="g"))
        for _ in range(100):
            finish(rig, session)

        assert late in pushed(rig)
        assert len(pushed(rig)) < 400

    def test_limited_tasks_do_not_wait_for_a_pool_of_long_tasks(self, rig):
        long_ones, short_ones = rig.join("p", slots=2, queues=["a", "default"]), rig.join("q", slots=2)
        rig.submit(count=2, one=spec("long", queue="a"))
        rig.submit(count=1)
        finish(rig, short_ones)
        rig.submit(count=300)
        (late,) = rig.submit(one=limited(GPU, name="g"))
        for _ in range(60):
            finish(rig, short_ones)

        assert len(rig.held[long_ones]) == 2
        assert late in pushed(rig)

    def test_a_limit_that_is_reached_holds_up_nothing_else(self, rig):
        session = rig.join(slots=8)
        rig.submit(count=5, one=limited(GPU, priority=5))
        rig.submit(count=3, one=spec("g"))

        assert len(rig.held[session]) == 5

    def test_lone_tasks_go_past_a_limit_that_is_reached(self, rig):
        rig.join(slots=8)
        rig.submit(count=5, one=limited(GPU))
        assert not rig.hub.state.ledger.backlog.routes
        (lone,) = rig.submit(one=spec("g"))
        assert lone in pushed(rig)


class TestSeveral:
    def test_all_permits_are_taken_together_or_none(self, rig):
        session = rig.join(slots=8)
        rig.submit(count=10, one=limited(LimitRule("api", 3, 1.0), GPU))
        for _ in range(10):
            while rig.held[session]:
                finish(rig, session)
        assert len(pushed(rig)) == 3
        assert not rig.hub.state.ledger.limits.counters["gpu", ""].holders
        wait(rig, 1.0 + LEEWAY)
        assert len(rig.held[session]) == 2
        finish(rig, session)
        assert len(pushed(rig)) == 6

    def test_tasks_that_share_one_limit_take_turns(self, rig):
        session = rig.join(slots=8)
        rig.submit(count=4, one=limited(GPU, name="f"))
        others = rig.submit(count=4, one=limited(GPU, LimitRule("api", 100, 1.0), name="g"))
        for _ in range(4):
            finish(rig, session)

        assert set(pushed(rig)) & set(others)

    def test_a_frozen_pool_keeps_its_permits_until_its_lease_is_over(self, rig):
        frozen, alive = rig.join("p", slots=2), rig.join("q", slots=2)
        rig.submit(count=4, one=limited(GPU))
        while len(rig.held[frozen]) + len(rig.held[alive]) > len(rig.held[frozen]):
            finish(rig, alive)
        before = len(pushed(rig))
        for _ in range(80):
            rig.beat(alive, "q")
            rig.after(0.2)
        for _ in range(4):
            if rig.held[alive]:
                finish(rig, alive)

        assert len(pushed(rig)) > before or not rig.tasks

    @pytest.mark.parametrize("seed", range(8))
    def test_whatever_happens_no_limit_is_exceeded(self, seed):
        chance, rig = random.Random(seed), rig_with()
        rules = [LimitRule("api", 7, 1.0), LimitRule("gpu", 3), LimitRule("user", 1, keyed=True)]
        specs = [
            limited(*some, name=f"f{n}") for n, some in enumerate((rules, rules[:1], rules[1:], rules[::2]))
        ]
        sessions = [rig.join(name, slots=2) for name in "pqrs"]
        starts: dict[tuple[int, int, int], float] = {}
        for _ in range(400):
            match chance.randrange(6):
                case 0:
                    one = chance.choice(specs)
                    keyed = any(rule.keyed for rule in one.limits)
                    submit(rig, one, *(chance.choice("abcde") if keyed else "" for _ in range(3)))
                case 1 | 2 | 3:
                    session = chance.choice(sessions)
                    key = chance.choice(rig.held[session] or [None])
                    what = chance.randrange(3) if key else 3
                    if what == 0:
                        rig.report(session, done=(key,))
                    elif what == 1:
                        starts.pop(key, None)
                        rig.report(session, returned=(key,))
                    elif what == 2:
                        rig.fail(session, key)
                case 4:
                    live = list(rig.tasks)
                    if live:
                        rig.cancel(1, chance.choice(live) & 0xFFFF)
                case 5:
                    wait(rig, chance.random() * 0.3)
            counters = rig.hub.state.ledger.limits.counters.values()
            assert all(len(one.holders) <= one.rule.count for one in counters if not one.rule.window)
            self._note(rig, starts)
            assert sum(when > rig.now - 1.0 for when in starts.values()) <= 7
        assert len(starts) > 20

    @staticmethod
    def _note(rig: HubRig, starts: dict[tuple[int, int, int], float]) -> None:
        """Notes when tasks with the rate were pushed."""
        known = rig.hub.state.specs
        for message in rig.pushed:
            for run in message.runs:
                if any(rule.name == "api" for rule in known[run.spec].spec.limits):
                    starts.update({(run.client, seq, run.attempt): message.sent for seq in run.seqs})
        rig.pushed.clear()


class TestKeys:
    def test_each_key_has_a_limit_of_its_own_in_turn(self, rig):
        session = rig.join(slots=8)
        tasks = submit(rig, limited(USER), *"aaaabbc")
        assert pushed(rig) == [tasks[0], tasks[4], tasks[6]]
        finish(rig, session)
        assert pushed(rig)[3:] == [tasks[1]]

    def test_keys_are_served_in_turn(self, rig):
        session = rig.join(slots=1)
        keys = [f"k{n % 10}" for n in range(100)]
        tasks = submit(rig, limited(USER), *sorted(keys))
        of = dict(zip(tasks, sorted(keys), strict=True))
        while rig.held[session]:
            finish(rig, session)
        order = [of[seq] for seq in pushed(rig)]

        assert len(order) == 100
        for start in range(0, 100, 10):
            assert len(set(order[start : start + 10])) == 10

    def test_what_is_over_leaves_nothing_behind(self, rig):
        session = rig.join(slots=4)
        rules = (USER, LimitRule("each", 2, 5.0, keyed=True), API, GPU)
        submit(rig, limited(*rules), *(f"k{n}" for n in range(30)))
        while rig.tasks:
            wait(rig, 0.1)
            while rig.held[session]:
                finish(rig, session)
        wait(rig, 6.0)
        ledger = rig.hub.state.ledger

        assert not ledger.limits.counters
        assert not ledger.backlog.limited
        assert not ledger.backlog.routes
        assert not ledger.limits._timers

    def test_a_million_keys_and_no_more(self, monkeypatch):
        monkeypatch.setattr("taskmesh.hub.machine.submission.MOST_COUNTERS", 5)
        rig = rig_with()
        submit(rig, limited(USER), *"abcde")
        assert rig.told[1][-1] != m.Busy
        submit(rig, limited(USER), "f")
        assert isinstance(rig.told[1][-1], m.Busy)


class TestDefinitions:
    def test_the_newer_one_counts(self, rig):
        session = rig.join(slots=8)
        rig.submit(count=6, one=limited(GPU))
        rig.submit(count=1, one=limited(LimitRule("gpu", 4), name="g"))

        assert len(rig.held[session]) == 4
        assert any(record.kind == "limit.changed" for record in rig.records)

    def test_an_operators_goes_before_code_until_it_is_unset(self, rig):
        session = rig.join(slots=8)
        rig.submit(count=8, one=limited(GPU))
        assert question(rig, m.Command(1, "limit", "gpu:5")) == {"limit": "gpu", "rule": "5"}
        assert len(rig.held[session]) == 5
        rig.submit(count=1, one=limited(LimitRule("gpu", 1), name="g"))
        assert len(rig.held[session]) == 5
        assert question(rig, m.Command(2, "unlimit", "gpu")) == {"limit": "gpu", "rule": "1"}
        for _ in range(4):
            finish(rig, session)
        assert len(rig.held[session]) == 1
        assert "not set by hand" in str(question(rig, m.Command(3, "unlimit", "gpu")))
        assert "is no limit" in str(question(rig, m.Command(3, "limit", "gpu:many")))

    def test_a_rate_can_be_made_of_a_number_of_tasks(self, rig):
        session = rig.join(slots=8)
        rig.submit(count=8, one=limited(GPU))
        question(rig, m.Command(1, "limit", "gpu:1/s"))
        assert len(pushed(rig)) == 3
        while rig.held[session]:
            finish(rig, session)
        wait(rig, 2.05)
        assert len(pushed(rig)) == 5

    def test_the_view_names_all(self, rig):
        rig.join(slots=8)
        rig.submit(count=8, one=limited(API, GPU))
        submit(rig, limited(USER, name="g"), "a", "a", "b")
        rows = {row["limit"]: row for row in question(rig, m.Query(1, "limits"))}

        assert rows["api"]["rule"] == "5/s"
        assert (rows["gpu"]["running"], rows["gpu"]["waiting"]) == (2, 6)
        assert (rows["user"]["keys"], rows["user"]["running"], rows["user"]["waiting"]) == (2, 2, 1)


class TestRestart:
    """A hub that follows another in memory mode."""

    def test_a_window_counts_as_full_at_first(self):
        rig = HubRig()
        rig.client()
        began = rig.now
        rig.join(slots=8)
        rig.submit(count=7, one=limited(API))
        assert not pushed(rig)
        wait(rig, 0.95 - (rig.now - began))
        assert not pushed(rig)
        wait(rig, 0.1)
        assert len(pushed(rig)) == 5

    def test_a_window_longer_than_a_lease_counts_as_full_for_a_lease(self):
        rig = HubRig()
        rig.client()
        rig.join(slots=8)
        rig.submit(count=7, one=limited(LimitRule("api", 5, 86400.0)))
        wait(rig, rig.config.lease - 0.5)
        assert not pushed(rig)
        wait(rig, 0.6)
        assert len(pushed(rig)) == 5

    def test_what_pools_list_has_its_permits_before_others_go(self):
        rig = HubRig()
        rig.client()
        inventory = [Held(7, 1, [1, 2], limits=(GPU, USER), part="ann")]
        session = rig.join(slots=8, epoch=3, inventory=inventory)
        mine = submit(rig, limited(GPU), "", "", "")
        assert not pushed(rig)
        assert rig.hub.deadline > rig.now, "it does not spin meanwhile"
        wait(rig, rig.config.lease + 0.5)
        assert not pushed(rig)
        assert set(rig.hub.state.ledger.limits.counters) == {("gpu", ""), ("user", "ann")}
        rig.report(session, done=((7, 1, 1),))
        assert pushed(rig) == mine[:1]

    def test_permits_pass_from_what_is_listed_to_what_is_asked_for(self):
        rig = HubRig()
        inventory = [Held(1, 1, [1, 2], limits=(GPU,))]
        session = rig.join(slots=8, epoch=3, inventory=inventory)
        rig.client()
        submit(rig, limited(GPU), "", "", "", again=True)
        wait(rig, rig.config.lease + 0.5)
        assert not rig.hub.state.ledger.limits.listed
        assert len(rig.hub.state.ledger.limits.counters["gpu", ""].holders) == 2
        rig.held[session] = [(1, 1, 1), (1, 2, 1)]
        finish(rig, session)
        assert pushed(rig) == [3]

    def test_a_pool_that_dies_with_listed_tasks_frees_their_permits(self):
        rig = HubRig()
        rig.join(slots=8, epoch=3, inventory=[Held(7, 1, [1, 2], limits=(GPU,))])
        rig.client()
        rig.after(rig.config.lease + 1)
        rig.join("q", slots=8)
        submit(rig, limited(GPU), "", "", "")
        wait(rig, 0.1)

        assert len(pushed(rig)) == 2

    def test_a_pool_that_dies_a_thousand_times_leaves_no_permit_taken(self):
        rig = rig_with(pool_loss_limit=100_000)
        rig.submit(count=6, one=limited(GPU, LimitRule("api", 10_000_000, 1.0)))
        chance = random.Random(3)
        for instance in range(1, 1001):
            session = rig.join(slots=4, instance=instance)
            counter = rig.hub.state.ledger.limits.counters["gpu", ""]
            assert len(counter.holders) <= 2
            if chance.random() < 0.01 and rig.held[session]:
                rig.report(session, returned=(rig.held[session][0],))
            rig.tell(ev.LinksLost(session))
            rig.after(1.2)
            assert not rig.hub.state.ledger.limits.counters["gpu", ""].holders


class TestExplanation:
    def test_a_task_names_the_limit_that_it_waits_for(self, rig):
        rig.join(slots=8)
        seqs = rig.submit(count=1210, one=limited(API))

        assert task_of(rig, seqs[-1])["why"] == "limit api 5/s, 1,204 before it"

    def test_a_key_is_named_too(self, rig):
        rig.join(slots=8)
        tasks = submit(rig, limited(USER), *"aab")

        assert task_of(rig, tasks[1])["why"] == "limit user of 'a' 1, 0 before it"

    def test_after_a_restart_it_says_what_for(self):
        rig = HubRig()
        rig.client()
        rig.join(slots=8)
        (seq,) = submit(rig, limited(GPU), "")

        assert "for pools to say what they run" in str(task_of(rig, seq)["why"])


def test_the_lineups_of_a_withheld_client_are_passed_over(rig):
    rig.client(2)
    rig.client(3)
    rig.join(slots=1)
    rig.submit(3, count=1)
    theirs = submit(rig, limited(USER), *"ab")
    ours = submit(rig, limited(USER), *"cd", client=2)
    rig.hub.state.ledger.backlog.withheld.add(1)
    finish(rig, rig.session())
    finish(rig, rig.session())

    assert pushed(rig)[1:] == ours
    rig.hub.state.ledger.backlog.withheld.discard(1)
    finish(rig, rig.session())
    assert pushed(rig)[3:] == theirs[:1]


def test_stale_entries_of_lineups_that_stand_aside_are_dropped(rig):
    rig.join(slots=8)
    seqs = rig.submit(count=50, one=limited(GPU))
    rig.cancel(1, *seqs[2:])
    wait(rig, 1.0)

    assert not rig.hub.state.ledger.backlog.limited
    assert list(itertools.islice(rig.hub.state.ledger.backlog.entries(), 1)) == []
