"""A client of a soak: workflows of all kinds, and from the client that is never killed many small tasks.

Usage: workflow_program ADDRESS FOLDER NAME SEED ONLY

It stops when the folder has the file STOP. On stdout it says, as JSON, "ready", "wrong" of what has ended
otherwise than it should, and "done".
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

from taskmesh import Mesh, Schedule, gather, task
from taskmesh.errors import MeshClosed, WorkerCrashed
from tests.chaos.client_program import DEADLINE, STOP, tell
from tests.chaos.errands import triple
from tests.chaos.ticks import PERIOD, soak_tick
from tests.chaos.workflows import WORKFLOWS, Ledger
from tests.harness.cluster import OVERRIDES
from tests.harness.journal import Journal
from tests.harness.waiting import wait_until

RESIDENT = "client-0"
"""The client that nobody kills."""
ROUNDS = "rounds.log"
ROUND = 1000
"""Small tasks at a time."""
PAUSE = 0.1
"""Seconds between two rounds."""
MOST = 150
"""Tasks in workflows that a client has under way at most."""


def wrong(text: str) -> None:
    tell("wrong", text=text)


def submit_workflows(ledger: Ledger, chance: random.Random, stop: Path, only: list[str]) -> None:
    """Keep so many tasks under way until the file is there; then wait for all of them."""
    weights = {kind: weight for kind, weight in WORKFLOWS.items() if not only or kind.__name__ in only}
    while not stop.exists():
        (kind,) = chance.choices(list(weights), list(weights.values()))
        kind(ledger, chance)
        wait_until(lambda: ledger.tend() < MOST or stop.exists(), DEADLINE, "tasks end", tick=0.05)
    wait_until(lambda: not ledger.tend(), DEADLINE, "every task has ended", tick=0.05)


def submit_rounds(mesh: Mesh, journal: Journal, stop: Path) -> None:
    """Submit small tasks until the file is there, by themselves and in a map by turns."""
    right = [triple(number) for number in range(ROUND)]
    turn = 0
    while not stop.exists():
        turn += 1
        try:
            mapped = mesh.map(triple, range(ROUND), chunksize=20) if turn % 4 == 0 else None
            found = list(mapped or gather([mesh.submit(triple, number) for number in range(ROUND)]))
            mesh.with_options(delay=PAUSE).submit(triple, 0).result()
        except WorkerCrashed:  # three strikes at one task
            continue
        except MeshClosed:  # the other thread has failed, and says why
            return
        except BaseException as error:  # noqa: BLE001  told: the thread's end would tell nobody
            wrong(f"a round ended with {error!r}")
            continue
        journal.write("round", turn, ROUND + 1)
        if found != right:
            wrong(f"a round gave {found[:10]}...")


def main(address: str, folder: str, name: str, seed: str, only: str) -> None:
    stop = Path(folder) / STOP
    scheduled = task(schedule=Schedule(PERIOD, overlap="allow"))(soak_tick) if name == RESIDENT else None
    with Mesh(address, **OVERRIDES) as mesh:
        tell("ready")
        rounds = threading.Thread(target=submit_rounds, args=(mesh, Journal(Path(folder) / ROUNDS), stop))
        if name == RESIDENT:
            rounds.start()
        ledger = Ledger(mesh, Path(folder), name, wrong)
        submit_workflows(ledger, random.Random(seed), stop, [kind for kind in only.split(",") if kind])
        if name == RESIDENT:
            rounds.join(DEADLINE)
            assert not rounds.is_alive(), "a round has not ended"
    del scheduled  # until here it is declared to each new hub
    tell("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
