"""A client of an episode: it submits errands until it is told to stop, and waits for all of them.

Usage: client_program ADDRESS FOLDER NAME SEED ONLY

It stops when the folder has the file STOP. On stdout it says, as JSON, "ready", "wrong" of a map, and "done".
"""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path

from taskmesh import Mesh
from taskmesh.errors import WorkerCrashed
from tests.chaos.errands import errand, triple
from tests.faults.client import Client
from tests.harness.cluster import OVERRIDES

STOP = "stop"
MOST = 300
"""Tasks that a client has under way at most."""
DEADLINE = 60.0
"""Seconds that everything under way may take once nothing strikes any more."""


def tell(event: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


class Customer:
    """The client's loop: errands in one thread, maps in another."""

    def __init__(self, mesh: Mesh, folder: Path, name: str, seed: int, only: tuple[str, ...]) -> None:
        self.client = Client(mesh, folder, name)
        self._mesh = mesh
        self._stop = folder / STOP
        self._seed = seed
        self._only = only
        self._number = 0
        self._pause = threading.Event()  # never set: its wait is a pause

    def run(self) -> None:
        """Submit until the file is there; then wait for all that is under way."""
        chance = random.Random(self._seed)
        maps = threading.Thread(target=self._keep_mapping, args=(random.Random(self._seed + 1),))
        maps.start()
        while not self._stop.exists():
            for _ in range(chance.choice((1, 3, 20, 80))):
                self._submit()
            self.client.confirm()
            self._pause.wait(chance.random() * 0.3)
            while len(self.client.futures) - len(self.client.ended) > MOST and not self._stop.exists():
                self.client.confirm()
                self._pause.wait(0.05)
        self.client.wait_all(DEADLINE)
        self.client.confirm()
        maps.join(DEADLINE)
        assert not maps.is_alive(), "a map has not ended"

    def _submit(self) -> None:
        made = errand(self._seed, self._number, self._only)
        index = self.client.submit(made.function, *made.arguments, **made.options)
        assert index == self._number, "tasks are numbered as errands are"
        self._number += 1
        if made.cancel is not None:
            timer = threading.Timer(made.cancel, self.client.cancel, (index,))
            timer.daemon = True
            timer.start()

    def _keep_mapping(self, chance: random.Random) -> None:
        while not self._stop.exists():
            numbers = range(chance.choice((5, 50, 400)))
            try:
                found = list(self._mesh.map(triple, numbers, chunksize=chance.choice(("auto", 1, 10))))
            except WorkerCrashed:  # three strikes at one chunk
                continue
            except BaseException as error:  # noqa: BLE001  told: the thread's end would tell nobody
                tell("wrong", text=f"a map ended with {error!r}")
                continue
            if found != [triple(number) for number in numbers]:
                tell("wrong", text=f"a map of {len(numbers)} items gave {found[:10]}...")
            self._pause.wait(chance.random() * 2)


def main(address: str, folder: str, name: str, seed: str, only: str) -> None:
    with Mesh(address, **OVERRIDES, open_timeout=DEADLINE) as mesh:  # strikes may keep the hub away for long
        tell("ready")
        Customer(mesh, Path(folder), name, int(seed), tuple(filter(None, only.split(",")))).run()
    tell("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
