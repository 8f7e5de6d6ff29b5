"""A client as a process of its own, for tests in which the client is the victim.

Usage: client_program ADDRESS FOLDER NAME MODE COUNT [GATE]

It says on stdout, as JSON, how far it is: "ready" when its session is open, "submitted", "done". It submits
when the gate is open.
"""

import json
import os
import sys
from pathlib import Path

from taskmesh import Mesh
from tests.faults.client import Client
from tests.faults.workload import produce, wait_for
from tests.harness.cluster import OVERRIDES
from tests.harness.gate import wait_at

RESULT_SIZE = 1 << 20


def tell(event: str) -> None:
    sys.stdout.write(json.dumps({"event": event}) + "\n")
    sys.stdout.flush()


def main(address: str, folder: str, name: str, mode: str, count: str, gate: str = "") -> None:
    mesh = Mesh(address, **OVERRIDES)
    mesh.status()
    client = Client(mesh, Path(folder), name)
    tell("ready")
    if gate and mode != "hold-bound":
        wait_at(gate)
    if mode == "produce":
        for _ in range(int(count)):
            client.submit(produce, RESULT_SIZE)
    elif mode == "hold-bound":  # the gate is for the tasks
        for _ in range(int(count)):
            client.submit(wait_for, gate, on_client_loss="cancel")
    else:
        bound = "cancel" if mode == "leave-bound" else "run"
        client.submit_ordinary(int(count), on_client_loss=bound)
    tell("submitted")
    if mode == "leave-at-once":
        os._exit(0)  # noqa: TID251  what the test is about
    if mode == "detach":
        mesh.close(detach=True)
        tell("detached")
        return
    client.wait_accepted(60)  # the clock goes on while this is stopped
    if mode == "exit-when-accepted":
        sys.exit()  # as a program that ends without having closed its mesh
    if mode in ("leave-when-accepted", "leave-bound"):
        os._exit(0)  # noqa: TID251  what the test is about
    client.wait_all(120)
    tell("done")
    mesh.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
