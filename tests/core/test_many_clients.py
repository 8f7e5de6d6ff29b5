"""Several clients, and many slots: the shape of what the hub sends, in time that is counted."""

import pytest

from tests.core.rig import spec
from tests.core.timed_mesh import TimedMesh

NOOP, OTHER = spec(), spec("g")
INSTANT = 3e-6
"""Seconds that a slot takes for a task that does nothing."""


class Outcome:
    """The run of some clients' tasks, which take equally long."""

    def __init__(self, mesh: TimedMesh, clients: int, total: int, seconds: float = INSTANT) -> None:
        warm(mesh, clients, seconds)
        begin, each = mesh.now, total // clients
        for client in range(1, clients + 1):
            mesh.submit(client, each, NOOP, seconds)
        mesh.until(begin + 60.0, lambda: all(mesh.finished(client, each) for client in range(1, clients + 1)))
        self.seconds = max(max(times) for times in mesh.ended.values()) - begin
        self.rate = total / self.seconds
        self.hub = mesh.hub.used / total
        self.per_run = total / mesh.counts["runs"]
        self.sent = mesh.counts["sent"] / total


def warm(mesh: TimedMesh, clients: int, *seconds: float) -> None:
    """Have the hub learn how long tasks take."""
    for client in range(1, clients + 1):
        mesh.client(client)
    mesh.until(mesh.now + 0.1)
    for one, each in zip((NOOP, OTHER), seconds, strict=False):
        mesh.submit(1, 200, one, each)
        mesh.until(mesh.now + 60.0, lambda: mesh.finished(1, 200))
        mesh.ended[1].clear()
    mesh.counts.clear()
    mesh.hub.used = 0.0


@pytest.fixture(scope="module")
def alone() -> dict[tuple[int, ...], Outcome]:
    return {slots: Outcome(TimedMesh(*slots), 1, 24_000) for slots in ((2,), (15,), (3, 3, 3, 3))}


@pytest.mark.parametrize("clients", [2, 4, 8])
@pytest.mark.parametrize("slots", [(2,), (15,), (3, 3, 3, 3)], ids=str)
def test_several_clients_together_are_as_quick_as_one(alone, slots, clients):
    one, several = alone[slots], Outcome(TimedMesh(*slots), clients, 24_000)

    assert several.rate >= 0.9 * one.rate
    assert several.hub <= 1.3 * one.hub
    assert several.per_run >= 70, "runs fall apart"
    assert several.sent <= 1.05, "tasks are sent twice"


@pytest.mark.parametrize("slots", [(2,), (15,)], ids=str)
def test_a_task_alone_does_not_wait_for_thousands_of_other_clients(slots):
    mesh = TimedMesh(*slots)
    warm(mesh, 4, INSTANT)
    for client in (1, 2, 3):
        mesh.submit(client, 30_000, NOOP, INSTANT, pace=0.0)
    mesh.until(mesh.now + 0.1)
    waits = []
    while not any(mesh.finished(client, 29_000) for client in (1, 2, 3)):
        begin, before = mesh.now, len(mesh.ended[4])
        mesh.submit(4, 1, NOOP, INSTANT)
        mesh.until(begin + 10.0, lambda before=before: len(mesh.ended[4]) > before)
        waits.append(mesh.ended[4][-1] - begin)

    assert len(waits) >= 10
    assert max(waits) <= 0.020
    assert sorted(waits)[len(waits) // 2] <= 0.013


def test_clients_have_equal_shares_of_work_in_any_50_ms():
    """One has tasks of 1 ms, the other has tasks of 10 ms."""
    mesh = TimedMesh(4)
    warm(mesh, 2, 0.001, 0.010)
    begin = mesh.now
    mesh.submit(1, 3000, NOOP, 0.001, pace=0.0)
    mesh.submit(2, 300, OTHER, 0.010, pace=0.0)
    mesh.until(begin + 0.5)

    for start in (0.1, 0.2, 0.3, 0.4):
        first, second = (
            seconds * sum(begin + start <= when < begin + start + 0.05 for when in mesh.ended[client])
            for client, seconds in ((1, 0.001), (2, 0.010))
        )
        assert first == pytest.approx(0.1, abs=0.031)
        assert second == pytest.approx(0.1, abs=0.031)


@pytest.mark.parametrize(
    ("slots", "seconds", "least"), [(15, 0.001, 0.97), (15, 0.01, 0.97), (64, 0.01, 0.95)]
)
def test_many_slots_are_kept_busy(slots, seconds, least):
    total = int(slots / seconds / 4)
    outcome = Outcome(TimedMesh(slots), 1, total, seconds)

    assert total * seconds / (slots * outcome.seconds) >= least
