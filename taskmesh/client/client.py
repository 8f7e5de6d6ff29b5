"""One client's life: pending table, port and callback thread, from the first submit to the last goodbye."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from taskmesh.client.functions import EncodedFunction
from taskmesh.client.futures.callbacks import CallbackThread
from taskmesh.client.futures.driver import Driver
from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.futures.outcome import arrived
from taskmesh.client.futures.waiters import Edges
from taskmesh.client.options import TaskOptions, is_count
from taskmesh.client.pending_table import PendingTable, is_detached
from taskmesh.config import MOST_SLOTS, Config
from taskmesh.errors import (
    ConfigError,
    ForkedMeshError,
    HubUnreachable,
    MeshClosed,
    NoMesh,
    TaskMeshError,
    TooLarge,
)
from taskmesh.messages.runs import MOST_EDGES, PICKLE, PROMISE, SAFE
from taskmesh.messages.schedules import Declaration
from taskmesh.pool.slots.nested import in_slot
from taskmesh.schedule import declarations, declarers
from taskmesh.serialize.code import FunctionCodec, Trailers
from taskmesh.serialize.dependencies import Collection, value_of
from taskmesh.serialize.payload import Payload, check_size, dumps_call
from taskmesh.serialize.values import FutureFound
from taskmesh.system.process import refuse_green_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmesh.client.port.port import SubmitPort

    OpenPort: TypeAlias = Callable[[PendingTable, Config, str, str], SubmitPort]

_CANCEL_S = 1.5
_GOODBYE_S = 5.0
_TOO_LATE = (
    "the interpreter is ending, and would not wait for an executor's tasks any more. Import "
    "MeshExecutor before you call atexit.register(), or use `with Mesh() as mesh:`, which waits itself"
)
_IMPORTING = "<frozen importlib._bootstrap>"


Call: TypeAlias = tuple[OpenRun, Payload, Edges | None]
"""A task as the pending table takes it."""


class MeshDriver(Driver):
    """The driver of a whole mesh without threads."""

    @abstractmethod
    def callback_thread(self, name: str) -> CallbackThread:
        """Make a stand-in for a thread of a client, which runs callbacks."""

    @abstractmethod
    def __call__(self, open_tasks: PendingTable, config: Config, role: str, slot: str) -> SubmitPort:
        """Make the port of a client, to be started at once."""


class OpenMap(Protocol):
    """A map that has not submitted all of its items yet."""

    def stop(self) -> None: ...


class Remains(NamedTuple):
    """Tasks that a client had not seen to their end when the interpreter ended.

    Attributes:
        left: accepted tasks that its hub goes on with.
        lost: all others.
        maps: those with items left.
    """

    left: int = 0
    lost: int = 0
    maps: int = 0


class Client:
    """The client behind all surfaces of one mesh. Opens by itself when the first task is submitted.

    Args:
        config: the settings.
        open_port: makes the port of its pending table, from settings, role and slot; of a mesh without
            threads its driver.
        role: whose key it shows, where keys are in use; a task in a slot shows its pool's.
        slot: where it runs, of a task in a slot: the pool's name and the process's id.
        middleware: objects with hooks.

    Attributes:
        config: the settings.
        middleware: objects with hooks, which may stand around its submissions.
        driver: of a mesh without threads.
        table: tasks without an outcome.
        callbacks: where done-callbacks run.
        map_thread: where maps submit, and take in what has ended.
        wired: payloads travel over a wire to another process.
        max_payload: bytes of one payload at most, 0 for any number.
        result_codec: PICKLE or SAFE, the encoding of results.
        closed: nothing can be submitted any more.
        kept: bytes of the values of `put`, by the numbers of their futures.
        maps: maps that have not submitted all of their items; a clean close waits for them.
        waits_at_exit: an interpreter that ends waits for the tasks; else it warns, and leaves accepted tasks
            to a hub elsewhere, or cancels those of an embedded one.
    """

    def __init__(
        self,
        config: Config,
        open_port: OpenPort,
        role: str = "client",
        slot: str = "",
        middleware: Sequence[object] = (),
    ) -> None:
        self.config = config
        self.middleware = middleware
        self._open_port = open_port
        self._role = role
        self._slot = slot
        self.driver = open_port if isinstance(open_port, MeshDriver) else None
        thread = CallbackThread if self.driver is None else self.driver.callback_thread
        self.callbacks = thread("taskmesh-callbacks")
        self.map_thread = thread("taskmesh-maps")
        self.table = PendingTable(config.client, self.callbacks, self.open)
        self.table.waiter_pool.driver = self.driver
        self.codec = FunctionCodec()
        self.closed = False
        self.maps: set[OpenMap] = set()
        self.kept: dict[int, int] = {}
        self.waits_at_exit = False
        self._is_open_to_others = bool(config.mesh.address or config.mesh.bind)
        self.wired = self._is_open_to_others or config.mesh.hub == "process"
        self.table.memfd = not self.wired
        self.max_payload = config.pool.max_payload if self.wired else 0
        self.result_codec = SAFE if config.client.result_codec == "safe" else PICKLE
        self.new_group = itertools.count(1).__next__
        self._port: SubmitPort | None = None
        self._lock = threading.RLock()

    @cached_property
    def signs(self) -> bool:
        """True if tasks and results are signed with a mesh key."""
        folder = self.config.mesh.keys
        if not self.wired or not folder:
            return False
        from taskmesh.security.keys import MESH_FILE  # 25 ms, and most programs have no keys

        return (Path(folder) / MESH_FILE).exists()

    @property
    def address(self) -> str:
        """The address at which the mesh's hub can be dialled; empty if nobody else can."""
        mesh = self.config.mesh
        port = self._port
        return (port.address if port is not None else "") or mesh.bind or mesh.address

    @property
    def is_open(self) -> bool:
        return self._port is not None

    def open(self) -> SubmitPort:
        """Open the port, if it is not open.

        Raises:
            HubUnreachable: no hub answered in time.
            MeshClosed: the client has ended, or the interpreter ends and would not wait for an executor's
                tasks; ForkedMeshError: in the parent process.
            NoMesh: a slot imports a module that opens an embedded mesh.
            TaskMeshError: gevent or eventlet has replaced the standard library's threads.
        """
        if isinstance(self.table.refusal, ForkedMeshError):
            raise self.table.refusal
        with self._lock:
            if self.closed:
                raise MeshClosed("this mesh is closed: open a new one")
            if self._port is None:
                if self.waits_at_exit and _nobody_waits.is_set():
                    raise MeshClosed(_TOO_LATE)
                if not self.config.mesh.address:
                    _refuse_in_slots_import()
                refuse_green_threads()
                port = self._open_port(self.table, self.config, self._role, self._slot)
                self.table.attach(port)
                try:
                    port.start(self.config.mesh.open_timeout)
                    if self._role == "client" and not self._slot:
                        for declaration in declarations():
                            port.put_schedule(declaration)
                except BaseException:
                    self.table.attach(None)
                    with suppress(Exception):  # why it did not open is what the caller has to know
                        port.close(cancel=True, timeout=_CANCEL_S)
                    raise
                self._port = port
                _open_clients.add(self)
                if self._role == "client" and not self._slot:
                    declarers.add(self)
            return self._port

    def declare(self, declaration: Declaration) -> None:
        """Tell the hub of a schedule that a module has declared since the mesh was opened.

        Raises:
            HubUnreachable: the hub does not answer.
            TaskMeshError: it refuses.
        """
        port = self._port
        if port is not None:
            port.put_schedule(declaration)

    def close(self, *, cancel: bool = False, detach: bool = False) -> None:
        """End the client: wait for all tasks first, cancel them, or leave them to the hub.

        Detached tasks are always left to the hub, once it has confirmed them. Harmless when called again.

        Raises:
            HubUnreachable: the hub was away for too long (`client.hub_timeout`), and tasks were open.
            ConfigError: `detach`, and there is no hub elsewhere, or the tasks are to be cancelled.
            BaseException: what interrupted the wait; the tasks are cancelled then.
        """
        if detach:
            self._check_detach(cancel=cancel)
        try:
            if detach and self.is_open:
                self._stop_maps()
                self.table.flush(None)
            elif not cancel:
                self.wait_for_all()
                self._check_outcomes()
                self.flush_detached(None)
        except BaseException:
            cancel = True
            raise
        finally:
            with suppress(TaskMeshError, TimeoutError):
                self.flush_detached(_CANCEL_S)
            self._end(cancel=cancel, reason=_left() if detach and not cancel else None)

    def flush_detached(self, timeout: float | None) -> None:
        """Wait until the hub has confirmed the tasks that are left to it.

        Raises:
            TimeoutError: not within `timeout` seconds. Or what broke the port.
        """
        if any(map(is_detached, self.table.unended)):
            self.table.flush(timeout)

    def _check_outcomes(self) -> None:
        """Report tasks that have no outcome because the wait for the hub was bounded."""
        lost, reason = self.table.failed_with_port, self.table.refusal
        bounded = self.config.client.hub_timeout > 0 and not self.closed
        if bounded and lost and isinstance(reason, HubUnreachable):
            raise HubUnreachable(f"{lost} tasks were open: {reason}")

    @property
    def _outlives_client(self) -> bool:
        """True if the hub, or one that goes on with its journal, runs tasks after this client's end."""
        hub = self.config.hub
        return bool(self.config.mesh.address or hub.journal or hub.journal_file)

    def _check_detach(self, *, cancel: bool) -> None:
        if cancel:
            raise ConfigError("close() takes cancel=True or detach=True, not both")
        if not self._outlives_client:
            raise ConfigError(
                "detach=True leaves tasks to a hub, and those of an embedded mesh end with it. "
                "Call close(), which waits for them, or use Mesh(ADDRESS) of a hub that runs by itself, or "
                "Mesh(journal=FILE)"
            )

    def end_at_exit(self, remains: list[Remains]) -> None:
        """End the client at the interpreter's end, soon: accepted tasks are left to a hub elsewhere.

        Args:
            remains: gets the counts of this client, whether or not an error follows.
        """
        maps = len(self.maps)
        left = 0
        if self._outlives_client and self.table.refusal is None:
            self._stop_maps()
            with suppress(TaskMeshError, TimeoutError):
                self.table.flush(_CANCEL_S)
            left = sum(
                self.table.is_accepted(future._seq) and future._run.spec.on_client_loss == "run"
                for future in self.table.unended
            )
        remains.append(Remains(left, len(self.table.unended) - left, maps))
        self._end(cancel=not left, reason=_left() if left else None)

    def _stop_maps(self) -> None:
        for job in list(self.maps):
            job.stop()

    def close_unreferenced(self) -> None:
        """End the client of a mesh without references after its tasks, in a thread: a finalizer may not wait.

        The interpreter waits for that thread, or gives the client up at its end, as `waits_at_exit` says.
        """
        if not self.is_open or self.table.refusal is not None:  # it ends already, or was the parent's
            return
        ends = threading.Thread(target=self.close, name="taskmesh-shutdown", daemon=not self.waits_at_exit)
        self.callbacks.put((ends.start,))
        if not self.waits_at_exit:
            warnings.warn(
                "a mesh was not closed, and nothing refers to it any more: it ends after its tasks; "
                "use `with Mesh() as mesh:`, or call mesh.close()",
                ResourceWarning,
                stacklevel=2,
            )

    def collect(
        self, run: OpenRun, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Payload, Edges | None]:
        """Return the payload of a call that may have futures among its arguments, and what it waits for.

        Raises:
            ConfigError: one of the arguments is a result that may not come: results are signed, and it is one
                of a key, signed for that; or it is ignored, and may not be made twice.
            SerializationError: an argument cannot be pickled.
            TooLarge: the call is above `max_payload`, or depends on too many tasks.
        """
        name = run.spec.name
        with Collection(self.table, arrived if run.when else value_of) as needs:
            payload = dumps_call(args, kwargs, where=name, memfd=self.table.memfd)
        check_size(payload, self.max_payload, f"the call of {name}", args, kwargs)
        if not (needs or run.after or run.when):
            return payload, None
        if len(needs) + len(run.after) > MOST_EDGES:
            raise TooLarge(
                f"a call of {name} depends on {len(needs) + len(run.after):,} tasks, and {MOST_EDGES:,} is "
                "the most: merge their results in steps, by tasks that take some of them each"
            )
        keyed = (future._run for future in needs.values() if future._run.key)
        if self.signs and any(other.spec.kind != PROMISE for other in keyed):
            raise ConfigError(
                "where results are signed (mesh.secret), the future of a task with key= cannot be an "
                "argument: pass its result(), or wait for it with after="
            )
        if any(future._run.spec.sink for future in needs.values()):
            raise ConfigError(
                "the result of a task with sink= goes to its consumers, and cannot be an argument: leave "
                "sink= out, or wait for it with after="
            )
        if any(future._run.ignores_result and future._run.spec.acks == "early" for future in needs.values()):
            raise ConfigError(
                'the result of a task with ignore_result=True and acks="early" may be gone when it is '
                "needed, and it must not run again: leave one of the two out, or wait for it with after="
            )
        return payload, Edges(needs.values(), run.after)

    def call_of(
        self, run: OpenRun, function: EncodedFunction, trailers: Trailers, args: tuple[Any, ...]
    ) -> Call:
        """Return a call with an item of a map or a pipe, as the table takes it.

        Raises:
            ConfigError: its limits have no key for these arguments; or as `collect`, as for the others.
        """
        if function.options.by is not None:
            run = function.parted(function.part_of(args, {}), run.group)
        args += trailers
        try:
            payload = dumps_call(args, {}, where=run.spec.name, memfd=self.table.memfd)
        except FutureFound:
            return run, *self.collect(run, args, {})
        if self.max_payload:  # two calls less for each item of an embedded mesh
            check_size(payload, self.max_payload, f"the call of {run.spec.name}", args)
        return run, payload, None

    def check_options(self, options: TaskOptions) -> None:
        """Refuse tasks that this mesh can never run, or not as they ask for.

        Raises:
            ConfigError: an embedded mesh has one pool, which does not serve the queue, or lacks a tag; or
                the task is to outlive a client that takes it along.
        """
        if options.detach and not self._outlives_client:
            raise ConfigError(
                "detach=True leaves a task to its hub, and that of an embedded mesh ends with it. Open "
                "Mesh(journal=FILE), from which the next one goes on, or Mesh(ADDRESS) of a hub that runs by "
                "itself"
            )
        if options.detach and self._role != "client" and self.config.mesh.keys:
            raise ConfigError(
                "a task that submits tasks shows its pool's key, and with that they end with it: detach=True "
                "is for tasks that a program submits"
            )
        pool = self.config.pool
        if self._is_open_to_others:  # there may be other pools
            return
        for word, wanted, had in (
            ("queues", {options.queue}, pool.queues),
            ("tags", options.tags, pool.tags),
        ):
            if lacking := sorted(set(wanted).difference(had)):
                raise ConfigError(
                    f"{word}: the pool of an embedded mesh has {list(had)}, the task asks for {lacking} and "
                    f"would wait for ever. Open Mesh({word}={[*had, *lacking]}), or use the address of a hub "
                    "that has such a pool"
                )

    def slots(self) -> int:
        """Return how many slots the mesh has, or may have: a hub that others join is asked."""
        if not self._is_open_to_others:
            return self._configured
        try:
            pools = self.open().query("pools", limit=10_000, timeout=1.0)
        except TaskMeshError:
            pools = None
        if not isinstance(pools, list):
            return self._configured
        return sum(int(pool["slots"]) for pool in pools) or self._configured

    @cached_property
    def _configured(self) -> int:
        """The slots by the settings, read once: a container's quota is in files, which take 50 us."""
        return self.config.pool.slots

    def cancel_unstarted(self, futures: Iterable[TaskFuture[Any]]) -> None:
        """Have the hub cancel the tasks that have not started: each ends when the hub reports it."""
        seqs = [future._seq for future in futures if not future.done()]
        port = self._port
        if seqs and port is not None:
            with suppress(MeshClosed):  # it closes now, which ends them all
                port.cancel(seqs, unstarted=True)

    def forked(self) -> None:
        """Reset the client in a forked child, to which nothing of it belongs."""
        self._lock = threading.RLock()
        self.maps.clear()
        self.table.forked()
        if self._port is not None:
            self._port.forked()

    def wait_for_all(self) -> None:
        """Wait until every task has ended, those that callbacks submit meanwhile too."""
        if self._port is None or self.closed:
            return
        while self.table.refusal is None:
            self.table.wait_idle(self.maps)
            self.map_thread.flush()
            self.callbacks.flush()  # a callback may submit more
            if all(map(is_detached, self.table.unended)) and not self.maps:
                return

    def _end(self, *, cancel: bool, reason: MeshClosed | None = None) -> None:
        with self._lock:
            already = self.closed
            self.closed = True
            declarers.discard(self)
            port = self._port
            self._port = None
        if already or isinstance(self.table.refusal, ForkedMeshError):
            return
        self._stop_maps()
        if cancel:
            self.table.cancel([future for future in self.table.unended if not is_detached(future)])
        reason = reason or (_left() if self.table.unended else None)
        if cancel or reason is None:
            self.table.refuse(reason)
        try:
            if port is not None:
                port.close(cancel=cancel, timeout=_CANCEL_S if cancel else _GOODBYE_S)
                self.table.attach(None)  # an embedded hub and pool would live as long as a closed mesh
        finally:
            self.table.refuse(reason)  # of what is left to the hub: until now outcomes came, and were taken
            for thread in (self.map_thread, self.callbacks):
                thread.close(0.2 if cancel or reason else None)
            _open_clients.discard(self)


def check_slots(word: str, count: object) -> None:
    """Refuse a number of slots that no embedded mesh can have; `word` is the caller's name for it.

    Raises:
        ConfigError: it is none, or too large.
    """
    if not is_count(count):
        raise ConfigError(f"{word} has to be a whole number greater than 0, not {count!r}")
    if count > MOST_SLOTS:
        raise ConfigError(f"{word} may be {MOST_SLOTS:,} at most, since each is a process, not {count!r}")


def _refuse_in_slots_import() -> None:
    """Refuse an embedded mesh that a module opens while a slot imports it.

    The slots of that mesh would import the module, too, and open one more each, without an end.
    """
    frame = sys._getframe() if in_slot() else None
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING and frame.f_code.co_name == "_find_and_load":
            raise NoMesh(
                "a module opens a mesh when it is imported, and a slot imports it for a task. Open the "
                "mesh in a function or under `if __name__ == '__main__'`; `mesh = Mesh()` alone opens none"
            )
        frame = frame.f_back


_open_clients: set[Client] = set()
_nobody_waits = threading.Event()
"""Set when what the interpreter does at its end has been done here: what opens now, it would kill."""


def _after_fork() -> None:
    for client in list(_open_clients):
        client.forked()
    _open_clients.clear()


def _before_exit() -> None:
    """Wait as other executors do, before the interpreter waits for threads, while new ones may start."""
    for client in list(_open_clients):
        if client.waits_at_exit:
            client.close()


def _at_exit() -> None:
    """End the meshes that were not closed, without a wait; executors of other handlers wait."""
    _nobody_waits.set()
    unclosed = list(_open_clients)
    remains: list[Remains] = []
    with ExitStack() as ends:  # an error in one of them spares none of the others
        if not all(client.waits_at_exit for client in unclosed):
            ends.callback(_warn_of, remains)
        for client in unclosed:
            if client.waits_at_exit:
                ends.callback(client.close)
            else:
                ends.callback(client.end_at_exit, remains)


def _warn_of(remains: list[Remains]) -> None:
    """Warn that a mesh was not closed, and say what has become of its tasks."""
    left, lost, maps = (sum(counts) for counts in zip(*remains, strict=True)) if remains else (0, 0, 0)
    parts = [f"{left} accepted tasks were left to the hub"] if left else []
    if lost or maps:
        rest = f" and the rest of {maps} maps" if maps else ""
        parts.append(f"{lost} pending tasks{rest} were cancelled")
    said = f" {', '.join(parts)};" if parts else ""
    warnings.warn(
        f"a mesh was still open when the interpreter ended:{said} "
        "use `with Mesh() as mesh:`, or call mesh.close(), which wait for the tasks"
        + (", or mesh.close(detach=True), which leaves them" if left else ""),
        # Python shows the one by default, and not the other.
        RuntimeWarning if parts else ResourceWarning,
        stacklevel=1,
    )


def _left() -> MeshClosed:
    return MeshClosed("this mesh was closed, and its tasks left to the hub, which goes on with them")


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
try:
    threading._register_atexit(_before_exit)  # type: ignore[attr-defined]  # as concurrent.futures does
except RuntimeError:  # imported while the interpreter ends, which may call what is registered now no more
    _nobody_waits.set()
