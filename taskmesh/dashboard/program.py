"""The dashboard program: a server in the main thread, signals, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import uvicorn

from taskmesh.client.port.port import SubmitPort
from taskmesh.client.port.remote_port import operator_session
from taskmesh.config import load
from taskmesh.dashboard.access import Access, DashboardSettings, dashboard_settings
from taskmesh.dashboard.application import Dashboard, Record
from taskmesh.dashboard.feed import PATIENCE, HubSession
from taskmesh.errors import ConfigError, HubUnreachable, TaskMeshError
from taskmesh.system.signals import ending_signals

CONNECTIONS = 256
"""Connections at a time; a further one is answered with 503."""
LAST_ANSWERS = 1
"""Seconds that answers under way have when the program ends."""


class Server(uvicorn.Server):
    """A server whose signals are this program's: its streams end first, and it ends well."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def run_dashboard(
    settings: DashboardSettings,
    open_port: Callable[[], AbstractContextManager[SubmitPort]],
    *,
    ready: Callable[[str, str], None],
    record: Record,
    until: int = -1,
) -> None:
    """Serve the dashboard until this program is asked to stop.

    A hub that is away is no reason to end: pages say so, and it is asked again.

    Args:
        settings: the dashboard's.
        open_port: opens an operator's session with the hub, until the end of the block.
        ready: called once it listens, with the address of the page, and with the token if that was made here.
        record: logs an event.
        until: a descriptor whose end ends this program too.

    Raises:
        ConfigError: the address is taken, or the hub's address or the keys cannot be used.
    """
    hub = HubSession(open_port)
    with contextlib.closing(hub), _listening(settings) as (listener, at):
        with contextlib.suppress(HubUnreachable):
            hub.port()
        access = Access(replace(settings, port=listener.getsockname()[1]))
        dashboard = Dashboard(access, hub, record)
        ready(f"https://{settings.proxied}/" if settings.proxied else at, access.made)
        asyncio.run(_serve(dashboard, listener, until))


@contextlib.contextmanager
def _listening(settings: DashboardSettings) -> Iterator[tuple[socket.socket, str]]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"the dashboard cannot listen at {settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another --http"
        ) from None
    with listener:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        yield listener, f"http://{host}:{listener.getsockname()[1]}/"


async def _serve(dashboard: Dashboard, listener: socket.socket, until: int) -> None:
    server = Server(
        uvicorn.Config(
            dashboard.application(),
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=LAST_ANSWERS,
        )
    )

    def stop() -> None:
        server.should_exit = True
        dashboard.feed.end()

    def stop_for_good() -> None:
        loop.remove_reader(until)
        stop()

    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, stop)
    if until >= 0:
        loop.add_reader(until, stop_for_good)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending_signals())  # our parent may have blocked some
    await server.serve(sockets=[listener])


def serve(gateway: str, report: int, until: int) -> None:
    """Serve a dashboard for the process that has started this one: a child's main function.

    Args:
        gateway: the address of its hub's private gateway.
        report: a descriptor on which the address of the page is told, or why there is none.
        until: a descriptor that the parent closes, or its end.
    """
    config = load({"mesh": {"address": gateway}}, environ={})

    def ready(at: str, token: str) -> None:
        os.write(report, f"{at}#t={token}\n".encode())

    try:
        run_dashboard(
            dashboard_settings("127.0.0.1:0"),
            lambda: operator_session(config, PATIENCE),
            ready=ready,
            record=lambda kind, fields: None,
            until=until,
        )
    except TaskMeshError as error:
        with contextlib.suppress(OSError):  # the parent is gone
            os.write(report, str(error).encode(errors="backslashreplace"))
        sys.exit(f"taskmesh: the dashboard cannot go on: {error}")
