"""Mesh: the object through which a program submits tasks."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast

from taskmesh.client.batch import Batch
from taskmesh.client.client import Client, MeshDriver, check_slots
from taskmesh.client.current_mesh import delivering, enter, leave, made
from taskmesh.client.dependencies import attached, checked_id
from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.futures.waiters import running_loop
from taskmesh.client.options import OptionValues, is_name
from taskmesh.client.progress_bars import ProgressBars
from taskmesh.client.promises import fulfilment, kept_value, promised
from taskmesh.client.submitter import Submitter
from taskmesh.config import Config, Source, load
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.executor import MeshExecutor
from taskmesh.hosting.transport import open_port, with_middleware
from taskmesh.messages.runs import LONGEST_NAME
from taskmesh.messages.schedules import Declaration
from taskmesh.messages.status import HubStatus
from taskmesh.middleware import checked_middleware
from taskmesh.schedule import Schedule, schedule_of
from taskmesh.serialize.payload import check_size, dumps_call
from taskmesh.system.clock import monotonic

if TYPE_CHECKING:
    from taskmesh.client.sink import Sink
    from taskmesh.hosting.dashboard_process import DashboardProcess
    from taskmesh.hosting.inline import InlineDriver

T = TypeVar("T")

LOOK, LOOK_AGAIN = 0.01, 0.25
"""Seconds between two looks at the pools, at first and at most."""
MOST_POOLS = 100_000
"""Pools that are looked at: more than a hub may have."""


class Mesh(Submitter):
    """Pools of workers that tasks are submitted to.

    Without an address the mesh is embedded: a thread (or, with `hub="process"`, a child process) of this
    program is its hub, and child processes run the tasks. With one, hub and pools are elsewhere.

    It opens when it is entered or first used. Leaving the `with` block waits for all tasks; leaving it by an
    exception cancels them, kills those of its own that run, and ends within two seconds. If a program ends
    without either, the tasks of an embedded mesh are cancelled, and those that a hub elsewhere has accepted
    go on there, with a warning that counts them. A mesh that is not closed and has no reference left ends
    after its tasks, with a ResourceWarning.

    The first day needs `address` and `workers`; the other arguments are advanced.

    Args:
        address: the gateway of a hub such as "tcp://127.0.0.1:5550".
        workers: slots of an embedded mesh, one for each CPU if not given. The mesh is embedded then, even
            if a file or TASKMESH_ADDRESS names a hub. 0 for none, of a mesh that listens.
        bind: the address at which an embedded mesh listens, such as "tcp://127.0.0.1:5550": workers, other
            clients and operators dial it as they dial a hub program. Beyond loopback it needs the keys of a
            hub (`keys=`). With port 0 a free one is used; `mesh.address` says which.
        hub: "thread" or "process": the place of an embedded hub.
        middleware: code around tasks (`Middleware`), objects or classes: around their submission, and in the
            slots of an embedded mesh. Workers elsewhere have their own (`taskmesh worker --use`).
        config: a TOML file or a mapping of sections instead of the file that is looked for; a Config
            instead of the environment too.
        overrides: settings as `section__key=`, or by a key that only one section has. And `dashboard=True`: a
            mesh that is its own hub shows itself in browsers, at `mesh.dashboard_url`.

    Raises:
        ConfigError: a setting is unknown, or its value cannot be used.
    """

    _driver: MeshDriver | None = None

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        bind: str | None = None,
        hub: Literal["thread", "process"] | None = None,
        middleware: Iterable[object] = (),
        config: Source = None,
        **overrides: object,
    ) -> None:
        found = checked_middleware(middleware)
        shown = bool(overrides.pop("dashboard", False))
        config = _settings(address, workers, bind, hub, config, overrides)
        if shown:
            _check_dashboard(config)
        client = Client(with_middleware(config, found), self._driver or open_port, middleware=found)
        super().__init__(client, {})
        self._shown = shown
        self._dashboard: DashboardProcess | None = None
        self._starts = threading.Lock()
        itself = weakref.ref(self)
        client.callbacks.context = delivering(lambda: itself() or Submitter(client, {}), client)
        made(self)
        weakref.finalize(self, client.close_unreferenced).atexit = False  # at exit the client ends itself

    @classmethod
    def inline(cls, *, workers: int = 1, **settings: Any) -> InlineMesh:
        """Return a mesh for tests, without threads and processes: who waits for a task runs it.

        Client, hub and pool are the real ones. Their clock is a virtual one: when everything waits, the time
        of the next thing that is due has come, and delays, backoff and schedules cost no time.

        Args:
            workers: slots; no two of them run at once.
            settings: as of `Mesh`, but for what has to do with other processes.
        """
        return InlineMesh(workers=workers, **settings)

    def __repr__(self) -> str:
        """Return the mesh in one line, from the facts of this program: no hub is asked."""
        client = self._client
        settings = client.config
        if settings.mesh.address:
            there = f"at {settings.mesh.address}"
        else:
            place = f"listening at {self.address}" if settings.mesh.bind else "embedded"
            there = f"{place}, {settings.pool.slots if settings.mesh.local_pool else 0} slots"
        stage = "closed" if client.closed else "open" if client.is_open else "not open yet"
        return f"<{type(self).__name__} {there}: {stage}, {len(client.table.unended)} tasks under way>"

    def _repr_html_(self) -> str:
        """Return the mesh for a notebook: with the hub's counts and pools, if it answers within a second."""
        head = f"<b>{escape(repr(self)[1:-1])}</b>"
        if self._client.closed or not self._client.is_open:
            return head
        try:
            found = self.status(timeout=1.0)
        except TaskMeshError as error:
            return f"{head}<br>{escape(str(error))}"
        states = [(escape(state), count) for state, count in found["tasks"].items() if count]
        counts = "".join(f"<li>{count} {state}</li>" for state, count in states)
        rows = "".join(
            f"<tr><td>{escape(str(pool['pool']))}</td><td>{escape(str(pool['state']))}</td>"
            f"<td>{pool['slots']}</td><td>{pool['busy']}</td></tr>"
            for pool in found["pools"]
        )
        table = f"<table><tr><th>pool</th><th>state</th><th>slots</th><th>busy</th></tr>{rows}</table>"
        return f"{head}<ul><li>{found['finished']} tasks finished</li>{counts}</ul>{table}"

    @property
    def address(self) -> str:
        """The address at which others can dial its hub; empty if nobody can.

        A mesh that listens at port 0 knows its port once it is open.
        """
        return self._client.address

    @property
    def dashboard_url(self) -> str:
        """The address of the mesh's dashboard, for a browser; with `dashboard=True`.

        Raises:
            ConfigError: the mesh has none, the extra `dashboard` is not installed, or the hub is another
                program's.
            TaskMeshError: it does not come up.
        """
        shown = self._open()
        if shown is None:
            raise ConfigError("this mesh has no dashboard: open Mesh(dashboard=True)")
        return shown.url()

    @property
    def connected(self) -> bool:
        """True if the mesh is open and its hub answers."""
        return self._client.is_open and self._client.table.connected

    def executor(self, **task_options: Unpack[OptionValues]) -> MeshExecutor:
        """Return a concurrent.futures.Executor on this mesh; its shutdown leaves the mesh open."""
        return MeshExecutor(mesh=self, **task_options)

    def batch(self, **options: Unpack[OptionValues]) -> Batch:
        """Return a batch, which holds futures: of tasks' own `submit()` in its `with` block, and of its own.

        They are counted and cancelled together, and have one end, `batch.done`. Maps and pipes are in no
        batch.

        Args:
            options: options of its tasks, which go before their own.

        Raises:
            ConfigError: an option is unknown, or its value cannot be used.
        """
        return Batch(self._client, {**self._options, **options}, self)

    def progress(self) -> ProgressBars:
        """Return a `with` block that shows a bar for each function of its tasks and each of its maps.

        They are those of tasks' own `submit()` in the block, and of its own `submit()`, `map()`, `starmap()`.
        """
        return ProgressBars(self._client, self._options, self)

    def promise(self, key: str, *, expires: float | None = None) -> TaskFuture[Any]:
        """Return the future of something that happens outside the mesh: an approval, a webhook, a file.

        Tasks may depend on it as on any other. `fulfil(key)` in any program of the mesh ends it, or
        `taskmesh fulfil KEY`, before or after somebody has asked for it: the outcome is kept for a day.

        Args:
            key: the name under which it is known in the whole mesh. With keys each user has promises of his
                own, unless it begins with "shared:".
            expires: seconds after which it ends with TaskExpired if nobody has fulfilled it.

        Raises:
            ConfigError: the key is not text, or `expires` is not a number of seconds.
        """
        return promised(self._client, key, expires)

    def attach(self, task_id: str) -> TaskFuture[Any]:
        """Return a future of a task that another program has submitted, or another mesh of this one.

        It ends as that task does, and tasks may depend on it as on any other. The task goes on for as long as
        one of those who wait for it has not given it up.

        Args:
            task_id: the `task_id` of the task's future.

        Returns:
            The future. It ends with UnknownTask if the hub knows no such task, or if that has ended and the
            hub has its outcome no more: its program has taken it, and no `keep=` keeps it. For some seconds
            after its own start a hub waits for clients that may bring the task along.

        Raises:
            ConfigError: it is no task id.
            MeshClosed: the mesh is closed.
        """
        client = self._client
        return attached(client.table, checked_id(task_id), client.result_codec)

    def fulfil(
        self, key: str, value: object = None, *, error: BaseException | None = None, timeout: float = 5.0
    ) -> bool:
        """End the promise of this key; return False if somebody has done so before: the first one counts.

        Args:
            key: of the promise.
            value: its value.
            error: the exception that it fails with, instead of a value.
            timeout: seconds to wait for the hub's answer.

        Raises:
            ConfigError: the key is not text.
            SerializationError: the value cannot be pickled.
            HubUnreachable: no answer within `timeout` seconds.
        """
        port = self._client.open()
        return port.fulfil(fulfilment(self._client, key, value, error), timeout)

    def sink(
        self, name: str, *, credit: int | str = "64MiB", ack: Literal["auto", "manual"] = "auto"
    ) -> Sink:
        """Return a consumer of a sink: an iterator over the outcomes of tasks with `sink=name`.

        Use it in a `with` block. Any number of programs, on any hosts, may take from one sink; each outcome
        goes to one of them, and to another one if it is not acknowledged.

        Args:
            name: the sink's name. With keys each user has sinks of his own, unless it begins with "shared:".
            credit: bytes of outcomes that may be here unacknowledged, such as "64MiB"; 1 for one at a time.
            ack: "auto": an outcome is acknowledged when the loop asks for the next one; "manual": by
                `sink.ack(outcome)`.

        Raises:
            ConfigError: the name or the credit cannot be used.
        """
        from taskmesh.client.sink import Sink

        return Sink(self._client, name, credit, ack)

    def put(self, value: T) -> TaskFuture[T]:
        """Put a value into the mesh, for many tasks to use: pass the future that this returns to them.

        The value travels once to the hub, once from there to each pool that needs it, and is mapped by the
        pool's slots, which do not copy it: what a task changes in it is its own. It is dropped when the
        future is.

        Args:
            value: the value.

        Raises:
            SerializationError: it cannot be pickled.
            TooLarge: it is above `max_payload`, where hub and pools are other processes, or above
                `client.max_bytes` with the other values that are kept.
        """
        return kept_value(self._client, value)

    def cancel(self, futures: TaskFuture[Any] | Iterable[TaskFuture[Any]]) -> int:
        """Cancel tasks, running or not; return the number of those that had not ended."""
        return self._client.table.cancel((futures,) if isinstance(futures, TaskFuture) else futures)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the hub has all tasks that were submitted so far, and its journal, if there is one.

        Raises:
            TimeoutError: not within `timeout` seconds.
            MeshClosed: the mesh was closed meanwhile.
        """
        self._client.table.flush(timeout)

    def wait_for_workers(self, slots: int = 1, timeout: float | None = None) -> int:
        """Wait until the mesh's pools have so many slots together that take tasks; return how many they have.

        Args:
            slots: the number of slots.
            timeout: seconds; None for any time.

        Raises:
            TimeoutError: there are still fewer after `timeout` seconds; it says how many, and of which pools.
            HubUnreachable: the hub does not answer.
            MeshClosed: the mesh is closed meanwhile.
        """
        check_slots("slots=", slots)
        deadline, pause = math.inf if timeout is None else monotonic() + timeout, LOOK
        never = threading.Event()  # its wait can be interrupted
        while True:
            pools = cast("Sequence[Mapping[str, Any]]", self._client.open().query("pools", limit=MOST_POOLS))
            found = {pool["pool"]: int(pool["slots"]) for pool in pools if pool["state"] == "ready"}
            if sum(found.values()) >= slots:
                return sum(found.values())
            left = deadline - monotonic()
            if left <= 0:
                there = ", ".join(f"{pool} with {count}" for pool, count in found.items()) or "none"
                raise TimeoutError(
                    f"{slots} slots were waited for, and after {timeout:g} s there are {sum(found.values())} "
                    f"(ready pools: {there}). Start more with `taskmesh worker --address "
                    f"{self.address or 'ADDRESS'}`"
                )
            never.wait(min(pause, left))
            pause = min(2 * pause, LOOK_AGAIN)

    def status(self, timeout: float = 5.0) -> HubStatus:
        """Return what the hub knows of its tasks, pools and programs, as `taskmesh status --json`.

        Args:
            timeout: seconds to wait for the answer.

        Raises:
            HubUnreachable: no answer within `timeout` seconds.
            MeshClosed: the mesh is closed, or closes.
        """
        return cast(HubStatus, self._client.open().query("status", timeout=timeout))

    def events(
        self, since: int = 0, *, limit: int = 100, timeout: float = 5.0
    ) -> Sequence[Mapping[str, Any]]:
        """Return the hub's newest events, oldest first: plain data, each with a number.

        Args:
            since: only events with a higher number.
            limit: at most so many; at least one.
            timeout: seconds to wait for the answer.

        Raises:
            HubUnreachable: no answer within `timeout` seconds.
        """
        argument = str(since) if since else ""
        answer = self._client.open().query("events", argument, limit, timeout)
        return cast(Sequence[Mapping[str, Any]], answer)

    def schedule(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        when: float | str | Schedule,
        **kwargs: Any,
    ) -> None:
        """Have the hub run `fn(*args, **kwargs)` by the clock, until the schedule is removed.

        A schedule of the same name is replaced: its next run is by the new times. Nobody gets the result; a
        run that fails is an event of the hub (`taskmesh schedule list` counts them).

        Args:
            name: the schedule's name.
            fn: a function or task function.
            args: its arguments by position.
            when: a number of seconds, a cron line, or a `Schedule`.
            kwargs: its arguments by name.

        Raises:
            ConfigError: the name, the schedule or an option of the task cannot be used.
            SerializationError: the function or an argument cannot be pickled.
            TaskMeshError: the hub refuses, and says why.
            HubUnreachable: the hub does not answer.
        """
        from taskmesh.client.scheduled_functions import check_options, firing_spec

        if not isinstance(name, str) or not is_name(name) or not name:
            raise ConfigError(
                f"a schedule's name is text of 1 to {LONGEST_NAME} characters, not {name!r:.200}"
            )
        timing = schedule_of(when).timing
        encoded, trailers = self._functions.encoded(fn)
        check_options(encoded.options, name)
        part = encoded.part_of(args, kwargs)
        args += trailers
        payload = dumps_call(args, kwargs, where=encoded.call.spec.name, memfd=self._table.memfd)
        check_size(payload, self._limit, f"the call of {encoded.call.spec.name}", args, kwargs)
        declaration = Declaration(name, timing, firing_spec(encoded.call.spec), payload, part)
        self._client.open().put_schedule(declaration)

    def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether there was one. A run that is on its way goes on.

        One that a module declares comes back when somebody declares it again: take it out of the code.

        Raises:
            HubUnreachable: the hub does not answer.
        """
        return self._client.open().drop_schedule(name)

    def close(self, *, cancel: bool = False, detach: bool = False) -> None:
        """Close the mesh: wait for all tasks, or cancel them. A second call does nothing.

        Args:
            cancel: gives up what has not ended.
            detach: leaves the tasks to the hub, once it has confirmed all of them: it runs them, and drops
                what they return, or keeps that for `attach` if it has a journal. Those with
                on_client_loss="cancel" end. What a map has not submitted yet is not submitted any more.

        Raises:
            ConfigError: `detach` of an embedded mesh, or together with `cancel`.
        """
        leave(self, self._client)
        self._close(cancel=cancel, detach=detach)

    def _close(self, *, cancel: bool = False, detach: bool = False) -> None:
        try:
            self._client.close(cancel=cancel, detach=detach)
        finally:
            if self._client.closed and self._dashboard is not None:
                self._dashboard.end()

    def _open(self) -> DashboardProcess | None:
        """Open the mesh, and start its dashboard if it is to have one."""
        port = self._client.open()
        if not self._shown:
            return None
        from taskmesh.hosting.dashboard_process import DashboardProcess

        with self._starts:
            if self._dashboard is None:
                self._dashboard = DashboardProcess(port.gateway(self._client.config.mesh.open_timeout))
                weakref.finalize(self, self._dashboard.end)
            return self._dashboard

    def __enter__(self) -> Self:
        """Open the mesh and make it the current one.

        Raises:
            HubUnreachable: no hub answered within `mesh.open_timeout` seconds.
        """
        self._open()
        enter(self, self._client)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for all tasks; cancel them if the block was left by an exception.

        Raises:
            HubUnreachable: the hub has been away for longer than `client.hub_timeout`; tasks were open.
        """
        self.close(cancel=error is not None)

    async def __aenter__(self) -> Self:
        """Enter as `__enter__` does, without blocking the event loop."""
        await _aside(self._open)
        enter(self, self._client)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave as `__exit__` does, without blocking the event loop."""
        leave(self, self._client)
        try:
            await _aside(partial(self._close, cancel=error is not None))
        except BaseException:  # cancelled while it waited for the tasks
            await _aside(partial(self._close, cancel=True))
            raise


class InlineMesh(Mesh):
    """A mesh in the thread that waits for it: see `Mesh.inline`."""

    def __init__(self, **settings: Any) -> None:
        from taskmesh.hosting.inline import InlineDriver

        self._driver: InlineDriver = InlineDriver()
        super().__init__(**settings)

    @property
    def now(self) -> float:
        """The seconds of its clock, from any beginning."""
        return self._driver.now

    def run_all(self) -> None:
        """Run all tasks to their end, and those that they and callbacks submit meanwhile."""
        self._client.wait_for_all()

    def advance(self, seconds: float) -> None:
        """Let the mesh's clock go on, and run what is due meanwhile."""
        self._open()
        self._driver.advance(seconds)


async def _aside(blocking: Callable[[], object]) -> None:
    """Run a blocking call in another thread."""
    loop = running_loop()
    if loop is None:
        raise RuntimeError("`async with` a mesh in an asyncio event loop; elsewhere use `with`")
    await loop.run_in_executor(None, blocking)


def _check_dashboard(config: Config) -> None:
    """Refuse a dashboard of a hub elsewhere, and where its packages are missing."""
    from taskmesh.hosting.dashboard_process import check_extra

    if config.mesh.address:
        raise ConfigError(
            "dashboard= is for a mesh that is its own hub; at an address, this is a program: "
            f"taskmesh dashboard --address {config.mesh.address}"
        )
    check_extra()


JOURNAL = frozenset(
    prefix + name for prefix in ("", "hub__") for name in ("journal", "journal_file", "strict")
)
"""Arguments that give an embedded mesh a journal, or say how it writes it."""


def _settings(
    address: str | None,
    workers: int | None,
    bind: str | None,
    hub: str | None,
    config: Source,
    overrides: Mapping[str, object],
) -> Config:
    if isinstance(address, int):  # as of ProcessPoolExecutor(2)
        raise ConfigError(
            f"the first argument is a hub's address, not {address!r}. For so many workers write "
            f"Mesh(workers={address!r})"
        )
    if workers is not None or bind:
        if not (workers is None or (bind and workers == 0)):
            check_slots("workers=", workers)
        if address or overrides.get("mesh__address") or overrides.get("address"):
            raise ConfigError(
                "bind= is for a mesh that is a hub itself: give an address or bind=, not both"
                if bind
                else "workers= is for an embedded mesh: at an address, pools say how many slots they have"
            )
        address = ""  # an argument goes before the environment and files, which may name a hub
    given = {"mesh__address": address, "pool__concurrency": workers, "mesh__hub": hub}
    given |= {"mesh__bind": bind or "", "mesh__local_pool": workers != 0}
    found = load(config, {key: value for key, value in given.items() if value is not None} | dict(overrides))
    if JOURNAL.isdisjoint(overrides):  # one of the environment, or of a file, is the hub program's
        return replace(found, hub=replace(found.hub, journal="", journal_file="", strict=False))
    if found.mesh.address:
        raise ConfigError(
            "journal= is for an embedded mesh: at an address, the hub has the journal, or has none "
            "(taskmesh hub --journal FILE)"
        )
    return found
