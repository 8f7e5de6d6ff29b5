"""An operator's session with a hub: questions and commands, no tasks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from taskmesh.cli.options import EVERYTHING, Reach
from taskmesh.net.client.port import SubmitPort
from taskmesh.net.client.remote_port import RemotePort
from taskmesh.security.keys import OPERATOR
from taskmesh.wire.runs import DoneRun, Failed, Progress, Run, Spec, Value

PAUSE = 0.01
"""Seconds between looks at what the hub has heard."""


class NoTasks:
    """The pending table of a session that submits nothing."""

    queued = False

    def drain(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Nothing."""
        return [], []

    def pending_runs(self, seqs: Sequence[int] | None = None) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Nothing."""
        return [], []

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        """Nothing."""
        return []

    def accepted(self, seqs: Sequence[int]) -> None:
        """Cannot happen: nothing was submitted."""

    def resolve(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """Cannot happen: nothing was submitted."""

    def notice(self, progress: list[Progress]) -> None:
        """Cannot happen: nothing was submitted."""

    def broken(self, error: BaseException) -> None:
        """The question that waits runs into its time-out."""


@contextmanager
def hub_session(reach: Reach) -> Iterator[SubmitPort]:
    """An operator's session with the hub that answers first.

    Raises:
        HubUnreachable: none answers in time, or none lets us in.
        ConfigError: an address cannot be used, or keys are missing.
    """
    port = RemotePort(NoTasks(), reach.config, role=OPERATOR)
    port.start(reach.timeout)
    try:
        yield port
    finally:
        port.close(cancel=True, timeout=2.0)


def signs_of_life(hub: SubmitPort, pool: str, timeout: float) -> list[dict[str, object]]:
    """Pings a pool, or "all", and waits until each has been heard, at most `timeout` seconds.

    Times are the hub's, of its ping and of the beat by which a pool answers at once: so the seconds are the
    trip from the hub to the pool and back.
    """
    begin = time.monotonic()
    rows = cast("list[dict[str, Any]]", hub.command("ping", pool, timeout))
    asked = {str(row["pool"]): float(row["asked_at"]) for row in rows}
    heard: dict[str, float] = {}
    pause = threading.Event()
    while len(heard) < len(asked) and time.monotonic() - begin < timeout:
        for row in cast("list[dict[str, Any]]", hub.query("pools", limit=EVERYTHING, timeout=timeout)):
            name = str(row["pool"])
            seconds = float(row["heard_at"]) - asked.get(name, math.inf)
            if seconds > 0 and name not in heard:
                heard[name] = round(seconds, 6)
        if len(heard) < len(asked):
            pause.wait(PAUSE)
    return [{"pool": name, "answered": name in heard, "seconds": heard.get(name)} for name in asked]
