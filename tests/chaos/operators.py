"""Operators of an episode: commands of `taskmesh` as processes, while everything else goes on."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from tests.chaos.company import Company
from tests.harness.cluster import key_environment
from tests.harness.journal import Journal
from tests.harness.program import Program

LOOKS = (("tasks",), ("status",), ("pool", "list"))
ENDINGS = {0, 1, 3, 4}
"""Exit codes that a command may have while hub and pools come and go."""
PATIENCE = 30.0
"""Seconds that a command may take, most of them for a hub that is not there."""


class Operators:
    """Those whose commands are under way."""

    def __init__(self, company: Company, chance: random.Random) -> None:
        self._company = company
        self._chance = chance
        self._under_way: list[tuple[Program, float, str]] = []

    def act(self) -> str:
        """Start a command by chance; return it in words."""
        pool = self._chance.choice([*self._company.pools, "all"])
        verb = self._chance.choice(
            ("pause", "resume", "resume", "drain", "cancel", "cancel", "explain", "look")
        )
        match verb:
            case "look":
                line: tuple[str, ...] = self._chance.choice(LOOKS)
            case "drain" if not self._company.is_frozen(self._company.hub.pid):
                pool = self._chance.choice(list(self._company.pools))
                self._company.draining.add(pool)
                line = ("drain", pool, "--wait", "3")
            case "cancel" | "explain":
                task = self._some_task()
                if task is None:
                    return f"{verb}: there are no tasks"
                if verb == "cancel":
                    self._company.record.cancelled[task] = time.monotonic()
                line = (verb, task)
            case "drain":
                return "drain: the hub could not tell the pool"
            case _:
                line = ("pool", verb, pool)
        self._start(line)
        return "taskmesh " + " ".join(line)

    def _some_task(self) -> str | None:
        """The id of a task that has not ended, as far as its client's log says."""
        name = self._chance.choice(list(self._company.clients) or [""])
        under_way: dict[int, str] = {}
        for entry in Journal(self._company.folder / f"{name}.log").entries():
            if entry.kind == "submitted":
                under_way[entry.index] = entry.fields[0]
            elif entry.kind == "outcome":
                under_way.pop(entry.index, None)
        return self._chance.choice(list(under_way.values())) if under_way else None

    def _start(self, line: tuple[str, ...]) -> None:
        task = line[1] if line[0] == "cancel" else ""
        self._under_way.append((self._program(line), time.monotonic(), task))

    def _program(self, line: tuple[str, ...]) -> Program:
        cluster = self._company.cluster
        return cluster.start(
            f"operator-{line[0]}",
            *line,
            "--json",
            env={
                "TASKMESH_ADDRESS": cluster.address,
                **key_environment(cluster.keys("operator", "operator")),
            },
        )

    def tend(self) -> bool:
        """Look after the commands under way; True when there are none."""
        for entry in list(self._under_way):
            program, began, task = entry
            if program.alive:
                if time.monotonic() - began <= PATIENCE:
                    continue
                self._company.note(f"{program.name} does not end")
                program.process.kill()
            elif program.process.returncode not in ENDINGS:
                self._company.note(f"{program.name} has ended with {program.process.returncode}")
            elif task and program.process.returncode == 0:
                self._company.record.confirmed.add(task)
            self._under_way.remove(entry)
        return not self._under_way

    def ask(self, *line: str) -> Any:
        """What a command says, None when it fails."""
        program = self._program(line)
        return json.loads(program.text()) if program.wait(PATIENCE) == 0 else None
