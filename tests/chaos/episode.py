"""One episode: a company, strikes for some seconds, then peace, and the judgement."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.client_program import DEADLINE, STOP
from tests.chaos.company import Company
from tests.chaos.judgement import Account, books, endings, judge, traces
from tests.chaos.operators import PATIENCE, Operators
from tests.chaos.strikes import Strikes
from tests.harness.cluster import pools_of
from tests.harness.leaks import Holdings, left_behind
from tests.harness.waiting import wait_until

BETWEEN = 1.2
"""Seconds between two strikes, on average."""
PEACE = 30.0
"""Seconds in which pools are back, and the ledger is empty, once nothing strikes any more."""
EXPLAINED = 5
"""Tasks that the hub is asked about when an episode has failed."""
END = 20.0
"""Seconds in which a program ends at SIGTERM."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  looked at only


class Episode:
    """A run of its own; `run` gives what went wrong, in words.

    Attributes:
        program: The module of the clients' program.

    Args:
        folder: Where logs go.
        seed: The seed of all chance; what processes make of it is theirs.
        only: Kinds of tasks; all kinds when it is empty.
        keys: Everybody shows keys.
        say: Takes the timeline, a line at a time.
    """

    program = "tests.chaos.client_program"

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        *,
        harsh: bool,
        say: Callable[[str], object],
        only: Sequence[str] = (),
        keys: bool = False,
    ) -> None:
        chance = random.Random(seed)
        self._seconds = seconds
        self._harsh = harsh
        self._only = tuple(only)
        self._say = say
        self._chance = chance
        self._company = Company(folder, chance, only, keys=keys, program=self.program)
        self._operators = Operators(self._company, chance)
        self._strikes = Strikes(self._company, self._operators, chance, harsh=harsh)
        self._began = time.monotonic()

    def run(self) -> list[str]:
        """Play it; all processes have ended when this returns."""
        before, memory = Holdings.now(), _shared_memory()
        company = self._company
        peaceful = False
        try:
            company.start()
            self._tell(f"started at {company.address}")
            self._be_struck()
            self._heal()
            self._wait_for_all()
            self._end()
            for left in left_behind(before, END):
                company.note(f"left behind: {left}")
            peaceful = True
        except (AssertionError, subprocess.TimeoutExpired) as error:
            company.note(f"it has not ended as it should: {error}")
            self._tell_of_hub()
        finally:
            company.thaw(math.inf)
            company.cluster.programs.close(tell=not peaceful)
            _kill_others(before)
        for name in sorted(_shared_memory() - memory):
            company.note(f"left behind: {SHARED_MEMORY / name}")
        self._judge()
        return company.record.problems

    def _tell(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._began:7.2f}  {what}")

    def _be_struck(self) -> None:
        end = time.monotonic() + self._seconds
        self._pass(self._chance.expovariate(1 / BETWEEN), end)
        while time.monotonic() < end:
            self._tell(self._strikes.strike())
            self._pass(self._chance.expovariate(1 / BETWEEN), end)

    def _pass(self, seconds: float, end: float) -> None:
        """Let time pass, and look after everybody meanwhile."""
        until = min(time.monotonic() + seconds, end)

        def tended() -> bool:
            self._tend()
            return time.monotonic() >= until

        wait_until(tended, seconds + 60, "time passes", tick=0.02)

    def _tend(self) -> None:
        self._company.tend()
        self._operators.tend()

    def _heal(self) -> None:
        """Everybody is there and takes work again."""
        self._company.heal()
        self._tell("nothing strikes any more")

        def at_peace() -> bool:
            self._company.tend()
            return self._operators.tend()

        wait_until(at_peace, PEACE + PATIENCE, "operators' commands have ended", tick=0.02)
        wait_until(self._all_ready, PEACE, "every pool takes work", tick=0.2)
        self._tell("every pool takes work")

    def _all_ready(self) -> bool:
        self._company.tend()
        self._operators.ask("pool", "resume", "all")
        status = self._operators.ask("status")
        states = {name: pool["state"] for name, pool in pools_of(status).items()} if status else {}
        return states == dict.fromkeys(self._company.pools, "ready")

    def _wait_for_all(self) -> None:
        """Clients end when all that they have submitted has; then the hub has nothing left."""
        (self._company.folder / STOP).touch()
        for name, client in self._company.clients.items():
            code = client.wait(DEADLINE + 2 * PEACE)
            if code:
                self._company.note(f"{name} has ended with {code}: {client.text('stderr')[-1000:]}")
        self._tell("every client has ended")
        found: list[str] = []

        def empty() -> bool:
            status = self._operators.ask("status")
            found[:] = books(status) if status else ["the hub does not answer"]
            return not found

        try:
            wait_until(empty, PEACE, tick=0.2)
        except AssertionError:
            for problem in found:
                self._company.note(problem)
            self._tell_of_hub()

    def _tell_of_hub(self) -> None:
        """Ask the hub for what it still has; the answers stay with the logs."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            self._operators.ask("status")
            for one in (self._operators.ask("tasks") or [])[:EXPLAINED]:
                self._operators.ask("explain", one["task_id"])

    def _end(self) -> None:
        company = self._company
        for program in company.pools.values():
            program.terminate()
        for program in company.pools.values():
            if code := program.wait(END):
                company.note(f"{program.name} has ended with {code} at SIGTERM")
        company.hub.terminate()
        if code := company.hub.wait(END):
            company.note(f"{company.hub.name} has ended with {code} at SIGTERM")
        self._tell("hub and pools have ended")

    def _judge(self) -> None:
        company = self._company
        accounts = [Account(company.folder, life, self._only) for life in company.lives]
        for account in accounts:
            company.record.problems += judge(account, company.record, harsh=self._harsh)
        company.record.problems += traces(company.cluster.programs.started)
        starts = sum(len(entries) for account in accounts for entries in account.starts.values())
        ended = ", ".join(f"{count} {kind}" for kind, count in sorted(endings(accounts).items()))
        self._tell(f"{sum(len(a.errands) for a in accounts)} tasks, {starts} executions; ended: {ended}")


def _shared_memory() -> set[str]:
    """What of ours, by its name, stands in /dev/shm."""
    names = os.listdir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else []
    return {name for name in names if name.startswith("taskmesh")}


def _kill_others(before: Holdings) -> None:
    """End what nobody's parent id leads to any more: what pools have left that did not end as they should."""
    for pid in Holdings.now(before).processes.keys() - before.processes.keys():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(str(pid)), signal.SIGKILL)
