"""The pool program: a loop in the main thread, signals that drain it, a clean end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial

import zmq

from taskmesh.config import Config
from taskmesh.core.events import DrainRequested
from taskmesh.errors import TaskMeshError
from taskmesh.http.side_port import side_port
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.metrics import pool_answers
from taskmesh.pool.session_monitor import News, SessionMonitor
from taskmesh.pool.settings import pool_settings
from taskmesh.pool.shell import PoolShell
from taskmesh.pool.slot_starter import FAREWELL, slots_in
from taskmesh.pool.slots.fork_server_client import NO_OPTIONS, ForkServerSupervisor, SlotOptions, SlotSettings
from taskmesh.pool.sockets import PoolSockets
from taskmesh.pool.startup import PATIENCE, SlotStarts
from taskmesh.sockets import Context
from taskmesh.system.loop import Loop
from taskmesh.system.process import raise_file_limit
from taskmesh.system.signals import StopRequest

Record = Callable[[str, dict[str, object]], None]


def _ignore(kind: str, fields: dict[str, object]) -> None:
    """Record nothing."""


def run_pool(
    config: Config,
    *,
    name: str = "",
    options: SlotOptions = NO_OPTIONS,
    ready: Callable[[str, str], None],
    news: News,
    record: Record = _ignore,
    patience: float = PATIENCE,
) -> bool:
    """Run a pool until it has drained or the hub refuses it; a signal drains, a second one ends it at once.

    Args:
        config: the user's settings.
        name: the pool's name.
        options: of its slots.
        ready: called with the pool's name and the hub's address when its first session opens.
        news: reports anything else that people should know, as a kind and a sentence.
        record: logs tasks that fail.
        patience: seconds in which the first slot must come up.

    Returns:
        True if it has drained; False when it was cut short.

    Raises:
        TaskMeshError: the hub refuses it, no slot could be started, or address, name or keys are unusable.
    """
    loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
    settings = pool_settings(config, name, wired=True, options=options)
    machine = PoolMachine(settings, time.monotonic())
    with (
        Context() as context,
        StopRequest(loop).listening() as stop,
        side_port(config, loop, lambda at: news("http", f"side port at {at}")) as reception,
        contextlib.ExitStack() as closing,
    ):
        raise_file_limit()
        sockets = PoolSockets(context, loop, config, machine.config.pool)
        closing.callback(sockets.close)
        fork_server = ForkServerSupervisor(SlotSettings.of(config.pool, machine.config.pool, options))
        starts = SlotStarts(machine, patience, partial(news, "slot.failed"))
        host = slots_in(loop, machine, fork_server, starts, sockets.events, record)
        pool = PoolShell(machine, sockets, host, record)
        closing.callback(_end_slots, pool)
        loop.parts = [pool]
        if reception is not None:
            reception.serve(pool_answers(machine, lambda: _drain(pool, config.pool.grace)))
        _turn_until_left(loop, pool, stop, SessionMonitor(machine, sockets, ready, news), config.pool.grace)
    return _has_drained(pool)


def _end_slots(pool: PoolShell) -> None:
    pool.host.close(timeout=0.0 if pool.left is None else FAREWELL)


def _has_drained(pool: PoolShell) -> bool:
    """Return True if a pool has left by itself, False if it was cut short.

    Raises:
        TaskMeshError: the hub refuses it.
    """
    if pool.left:
        raise TaskMeshError(f"the hub refuses this pool: {pool.left}")
    return pool.left is not None


def _drain(pool: PoolShell, grace: float) -> None:
    pool.events.append(DrainRequested(grace))
    pool.turn(time.monotonic())


def _turn_until_left(
    loop: Loop, pool: PoolShell, stop: StopRequest, monitor: SessionMonitor, grace: float
) -> None:
    """Run a pool until it has left its hub, or a second signal comes."""
    while pool.left is None and stop.asked < 2:
        loop.turn()
        monitor.check(time.monotonic())
        if stop.asked and pool.machine.state != "draining":
            pool.events.append(DrainRequested(grace))
