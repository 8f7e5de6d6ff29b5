"""Worlds in which every bound is met: messages closed by size and by number, turns cut short, crowds."""

import pytest

from taskmesh.client.machine import submission
from taskmesh.hub.machine import ventilator
from taskmesh.hub.machine.books import backlog, client_session, lanes
from taskmesh.pool.machine import spool
from tests.simulation import fairness, simulation
from tests.simulation.simulation import World
from tests.simulation.workload import KINDS, Plan

SEEDS = range(40)
CROWD = tuple(kind for kind in KINDS if kind.spec.name in {"instant", "instant-a", "short", "urgent"})


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch):
    monkeypatch.setattr(ventilator, "MAX_MESSAGE", 40)
    monkeypatch.setattr(ventilator, "MAX_MESSAGE_BYTES", 150)
    monkeypatch.setattr(client_session, "MAX_DELIVERY", 200)
    monkeypatch.setattr(spool, "MAX_REPORT", 200)
    monkeypatch.setattr(spool, "FEW", 2)
    monkeypatch.setattr(submission, "MAX_SUBMIT", 50)
    monkeypatch.setattr(submission, "MAX_BYTES", 400)
    monkeypatch.setattr(lanes, "LARGE", 64)
    for module in (backlog, fairness):
        monkeypatch.setattr(module, "QUANTUM", 0.0001)
    # A Submit has one task here, and is accepted when a slow journal has it: hundreds of tasks take a while.
    monkeypatch.setattr(simulation, "BOUND", 40.0)


class Crowded(World):
    """Some hundred tasks of two groups come at once, in addition."""

    def _plan_work(self) -> None:
        super()._plan_work()
        chance = self.setting.chance
        when = 0.5 + (self._heal_at - 1.0) * chance.random()
        for _ in range(3):
            self.setting.timetable.at(when + 0.02 * chance.random(), self._crowd, chance.choice((150, 300)))

    def _crowd(self, count: int) -> None:
        host = self.setting.chance.choice(self.clients)
        if not host.paused:
            self._plans += host.submit_all(self._burst, count)

    def _burst(self, client: int, first: int, count: int) -> list[Plan]:
        plans = self.setting.workload.calm_burst(client, first, count, CROWD)
        for plan in plans:
            plan.calm, plan.group = False, self.setting.chance.randrange(2)
        return plans


@pytest.mark.timeout(120)
def test_every_promise_is_kept_where_messages_and_turns_are_short():
    for seed in SEEDS:
        Crowded(seed).run()
