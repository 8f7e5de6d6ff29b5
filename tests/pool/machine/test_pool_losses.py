"""A task that takes its whole pool down is given up, and no other is blamed for it."""

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.ventilator import ALONE
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import CHUNK, Held
from tests.core.rig import EPOCH, HubRig, Key, spec


class Pools:
    """A pool that is started again under its name each time it dies."""

    def __init__(self, rig: HubRig, name: str = "p", slots: int = 2) -> None:
        self.rig, self.name, self.slots = rig, name, slots
        self.instance = 0
        self.start()

    @property
    def held(self) -> list[Key]:
        return self.rig.held[self.session]

    def start(self) -> None:
        self.instance += 1
        self.session = self.rig.join(self.name, slots=self.slots, instance=self.instance)

    def die(self) -> None:
        self.rig.tell(ev.FromClient(1, m.ClientBeat(EPOCH)))
        self.rig.tell(ev.LinksLost(self.session))
        self.rig.after(1.5)

    def finish(self, *seqs: int) -> None:
        done = tuple(key for key in self.held if key[1] in seqs)
        self.rig.report(self.session, done=done, elapsed=1.0 * len(done))


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def play(rig: HubRig, pools: Pools, guilty: int, most: int = 50) -> tuple[int, dict[int, int]]:
    """The guilty task kills its pool whenever it is there: how often, and what else died with it."""
    deaths, beside = 0, dict[int, int]()
    for _ in range(most):
        if any(seq == guilty for _, seq, _ in pools.held):
            for _, seq, _ in pools.held:
                if seq != guilty:
                    beside[seq] = beside.get(seq, 0) + 1
            pools.die()
            pools.start()
            deaths += 1
        elif pools.held:
            pools.finish(*[seq for _, seq, _ in pools.held])
        else:
            break
    return deaths, beside


def test_it_is_given_up_after_five_pools_and_all_others_are_done(rig):
    pools = Pools(rig)
    seqs = rig.submit(1, 40)

    deaths, beside = play(rig, pools, guilty=seqs[3])

    assert deaths == 5
    assert rig.outcomes() == {seq: "crash" if seq == seqs[3] else "done" for seq in seqs}
    assert max(beside.values(), default=0) <= 2, "from the second time on it is alone"


def test_its_error_tells_of_the_pools_and_of_the_cure(rig):
    pools = Pools(rig)
    (seq,) = rig.submit(1, 1)
    play(rig, pools, guilty=seq)

    (failure,) = [one for told in rig.told[1] if isinstance(told, m.Deliver) for one in told.failed][:1]
    assert failure.kind == "crash"
    assert failure.text.startswith("5 pools died while they ran this task")
    assert "hub.pool_loss_limit" in failure.text
    assert failure.attempt == 5
    assert failure.history[0].startswith("attempt 2 on p: pool lost, links lost")


def test_the_limit_can_be_set():
    rig = HubRig(pool_loss_limit=2)
    rig.client()
    pools = Pools(rig)
    (seq,) = rig.submit(1, 1)

    assert play(rig, pools, guilty=seq)[0] == 2


def test_a_chunk_is_split_by_its_client_once_it_is_suspect(rig):
    pools = Pools(rig)
    (seq,) = rig.submit(1, 1, spec(kind=CHUNK))

    assert play(rig, pools, guilty=seq)[0] == 2
    assert rig.outcomes() == {seq: "crash"}


def test_an_at_most_once_task_is_lost_with_its_pool(rig):
    pools = Pools(rig)
    (seq,) = rig.submit(1, 1, spec(acks="early"))
    pools.die()

    assert rig.outcomes() == {seq: "lost"}


class TestNotCharged:
    """A pool that leaves, or is only away for a while, has not died."""

    def losses(self, rig: HubRig, seq: int) -> int:
        return rig.tasks[1 << 64 | seq].losses

    def test_when_its_pool_leaves(self, rig):
        pools = Pools(rig)
        (seq,) = rig.submit(1, 1)
        rig.tell(ev.FromPool(m.Bye(EPOCH, pools.session, 1)))

        assert self.losses(rig, seq) == 0

    def test_when_its_pool_is_killed_as_it_drains(self, rig):
        pools = Pools(rig)
        (seq,) = rig.submit(1, 1)
        rig.beat(pools.session, state="draining")
        pools.die()

        assert self.losses(rig, seq) == 0

    @pytest.mark.parametrize("listed", [True, False])
    def test_when_its_pool_comes_back(self, rig, listed):
        pools = Pools(rig)
        (seq,) = rig.submit(1, 1)
        pools.die()
        assert self.losses(rig, seq) == 1
        rig.join(number=2, instance=1, inventory=[Held(1, 1, [seq])] if listed else [])

        assert self.losses(rig, seq) == 0

    def test_when_the_session_alone_is_a_new_one(self, rig):
        Pools(rig)
        (seq,) = rig.submit(1, 1)
        rig.join(number=2, instance=1, inventory=[Held(1, 1, [seq])])

        assert self.losses(rig, seq) == 0


class TestASuspect:
    @pytest.fixture
    def suspect(self, rig) -> int:
        """A task with which two pools have died; there is no pool now."""
        pools = Pools(rig)
        (seq,) = rig.submit(1, 1)
        for _ in range(2):
            pools.die()
            pools.start()
        pools.die()
        return seq

    def test_waits_for_the_emptiest_pool_which_gets_nothing_else_meanwhile(self, rig, suspect):
        rig.tasks[1 << 64 | suspect].losses = 2
        other = rig.submit(1, 1, spec("other"))
        pools = Pools(rig, "q")
        assert [seq for _, seq, _ in pools.held] == [suspect], "it goes first, and alone"

        rig.submit(1, 5, spec("other"))
        assert len(pools.held) == 1
        pools.finish(suspect)
        assert len(pools.held) == 2
        assert pools.held[0][1] == other[0]

    def test_stands_in_line_like_any_other_once_its_pool_turns_out_to_live(self, rig, suspect):
        """Priority counts again: an urgent task goes first."""
        rig.tasks[1 << 64 | suspect].losses = 2
        urgent = rig.submit(1, 1, spec("urgent", priority=5))
        rig.tasks[1 << 64 | suspect].losses = 1
        pools = Pools(rig, "q")

        assert [seq for _, seq, _ in pools.held] == [*urgent, suspect]

    def test_is_waited_for_by_one_pool_only(self, rig):
        first, second = Pools(rig, "a"), Pools(rig, "b")
        busy = rig.submit(1, 4)
        third = Pools(rig, "c")
        (seq,) = rig.submit(1, 1)
        for _ in range(2):
            third.die()
            third.start() if third.instance < 2 else None
        more = rig.submit(1, 20, spec("more"))
        first.finish(*busy)
        second.finish(*busy)
        rig.beat(first.session, "a")
        rig.beat(second.session, "b")

        held = {pool.name: [number for _, number, _ in pool.held] for pool in (first, second)}
        assert [seq] in held.values()
        (others,) = [numbers for numbers in held.values() if numbers != [seq]]
        assert set(others) <= set(more)
        assert len(others) == 2

    def test_does_not_go_to_a_pool_of_which_no_slot_starts(self, rig, suspect):
        """Such a pool is the emptiest."""
        broken = rig.join("broken", slots=0)
        assert rig.held[broken] == []
        good = Pools(rig, "good")

        assert rig.held[broken] == []
        assert [seq for _, seq, _ in good.held] == [suspect]

    def test_does_not_go_round_at_a_pool_that_refuses_it(self, rig, suspect):
        """Such a pool is the emptiest, time after time, while the others work."""
        good = Pools(rig, "good")
        good.finish(suspect)
        busy = rig.submit(1, 2, spec("other"))
        bad = Pools(rig, "bad")
        (seq,) = rig.submit(1, 1)
        rig.tasks[1 << 64 | seq].losses = 2
        refused = 0
        while bad.held and refused < 10:
            refused += 1
            rig.fail(bad.session, bad.held[0], "function", retryable=False)
        assert refused == 1
        good.finish(*busy)
        assert [number for _, number, _ in good.held] == [seq]

    def test_goes_beside_others_when_these_take_too_long(self, rig, suspect):
        """They may wait for tasks of their own, which wait for a slot."""
        rig.submit(1, 1)
        pools = Pools(rig, "q", slots=2)
        first = [seq for _, seq, _ in pools.held]
        assert first == [suspect]
        for _ in range(round(ALONE / 0.5) + 2):
            rig.after(0.5)
            rig.beat(pools.session, "q")

        assert len(pools.held) == 2

    def test_whose_children_wait_for_a_slot_lets_them_in_at_once(self, rig, suspect):
        pools = Pools(rig, "q", slots=1)
        assert [seq for _, seq, _ in pools.held] == [suspect]
        (child,) = rig.submit(1, 1, spec("child"))
        rig.beat(pools.session, "q", slots=2)

        assert [seq for _, seq, _ in pools.held] == [suspect, child]

    def test_can_be_cancelled(self, rig, suspect):
        rig.cancel(1, suspect)
        Pools(rig, "q")

        assert rig.tasks == {}
        rig.after(1.0)
        assert not rig.hub.state.ledger.suspects.routes
