"""What runs in the cluster: task functions in pools; as a program, a client that checks what comes back."""

import collections
import json
import pathlib
import threading
import time

from taskmesh import Mesh, task

STOP = pathlib.Path("/scratch/stop")
AHEAD = 12
"""Tasks under way at a time: some run, some wait in pools and at the hub."""


@task
def square(number: int, seconds: float) -> int:
    """Takes its time."""
    threading.Event().wait(seconds)
    return number * number


def main() -> None:
    """Submits until it is told to stop; then one line with the account."""
    account = {"finished": 0, "wrong": 0, "failed": 0, "repeated": 0, "longest_gap": 0.0}
    under_way = collections.deque()
    errors, number, told, last = [], 0, 0.0, time.monotonic()
    with Mesh(open_timeout=60) as mesh:
        while under_way or not STOP.exists():
            while len(under_way) < AHEAD and not STOP.exists():
                seconds = 3.0 if number % 10 == 0 else 0.2
                under_way.append((number, mesh.submit(square, number, seconds)))
                number += 1
            expected, future = under_way.popleft()
            try:
                account["wrong"] += future.result(timeout=60) != expected**2
                account["repeated"] += future.attempt > 1
            except Exception as error:  # noqa: BLE001  every one is counted, and shown
                account["failed"] += 1
                errors.append(repr(error))
            account["finished"] += 1
            now = time.monotonic()
            account["longest_gap"] = max(account["longest_gap"], round(now - last, 1))
            last = now
            if now - told > 0.5:
                told = now
                print(json.dumps(account), flush=True)  # noqa: T201  what the test reads
    print(json.dumps({**account, "submitted": number, "errors": errors[:5]}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
