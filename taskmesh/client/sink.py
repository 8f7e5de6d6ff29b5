"""A sink as its consumers see it: outcomes of tasks with `sink=`, shared among all who take from it."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec.structs import replace

from taskmesh.client.client import Client
from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.futures.outcome import Outcome
from taskmesh.client.futures.waiters import interruptible
from taskmesh.client.options import is_name
from taskmesh.core import ids
from taskmesh.core.specs import spec_number
from taskmesh.errors import ConfigError, MeshClosed
from taskmesh.messages.mesh_messages import SinkDeliver
from taskmesh.messages.runs import LONGEST_NAME, SAFE, SINK_VALUE, SINK_VALUE_NAME, Failed, Spec, Value
from taskmesh.serialize.payload import check_size, dumps_encoded, loads_encoded
from taskmesh.settings.setting import PositiveSize, Setting, SettingError
from taskmesh.shm.files import Buffer
from taskmesh.system.clock import monotonic

if TYPE_CHECKING:
    from taskmesh.client.port.port import SubmitPort

CLOSING = 5.0
"""Seconds that closing a sink waits for the hub's word on the last acknowledgements."""
REMEMBERED = 100_000
"""Outcomes acknowledged last that are not given out again should a new link bring them once more."""
_CREDIT = Setting(PositiveSize)


class SinkOutcome(Outcome[Any]):
    """The outcome of a task that has come by a sink.

    Attributes:
        task: client and number of the task.
    """

    def __init__(self, client: int, value: Value, *, plain: bool) -> None:
        super().__init__(ids.text_of(ids.task_id(client, value.seq)), value, plain=plain)
        self.task = client, value.seq

    def message(self) -> Buffer:
        """Return the bytes that a `SinkInput` has put there, which are not decoded.

        Raises:
            BaseException: as `result`.
        """
        error = self.exception()
        if error is not None:
            raise error
        return loads_encoded(self._checked().payload)


class Sink:
    """One consumer of a sink: an iterator of outcomes, and a context manager.

    Each outcome goes to one of all consumers, wherever they run, and is kept until one has acknowledged it.
    What a consumer has not acknowledged when it closes, dies or falls silent goes to another one, so an
    outcome may come twice; after it was acknowledged only to others, and only if the hub is lost before its
    task's program has heard of that. Threads may share a Sink.

    Args:
        client: the mesh's client.
        name: the sink's name.
        credit: bytes of outcomes that may be here unacknowledged.
        ack: "auto": an outcome is acknowledged when the loop asks for the next one; "manual": by `ack`.

    Attributes:
        name: as given.

    Raises:
        ConfigError: the name is not text that can travel, the credit is no size, or `ack` neither of the two.
    """

    def __init__(
        self, client: Client, name: str, credit: int | str, ack: Literal["auto", "manual"] = "auto"
    ) -> None:
        if not isinstance(name, str) or not name or not is_name(name):
            raise ConfigError(f"a sink's name is text of 1 to {LONGEST_NAME} characters, not {name!r:.200}")
        if ack not in ("auto", "manual"):
            raise ConfigError(f'ack= is "auto" or "manual", not {ack!r}')
        try:
            self._credit = int(_CREDIT.read(credit))
        except SettingError as error:
            raise ConfigError(f"credit= {error}") from None
        self.name = name
        self._client = client
        self._is_auto = ack == "auto"
        self._is_plain = client.result_codec == SAFE
        self._port: SubmitPort | None = None
        self._changed = threading.Condition()
        self._here: deque[SinkOutcome] = deque()
        self._clock: Callable[[], float] = monotonic
        self._until = 0.0
        self._generation = 0
        self._in_hand: set[tuple[int, int]] = set()  # what was given out and is not acknowledged
        self._acked: list[tuple[int, int]] = []
        self._recent: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._closed = False
        self._over = threading.Event()
        self._driver = client.driver

    def __repr__(self) -> str:
        stage = "closed" if self._closed else "open" if self._port is not None else "not open yet"
        return f"<Sink {self.name!r}: {stage}, {len(self._here)} outcomes here>"

    def __enter__(self) -> Self:
        """Open the sink.

        Raises:
            ConfigError: this mesh takes from a sink of that name already.
            HubUnreachable: no hub answers.
            MeshClosed: the mesh is closed.
        """
        if self._closed or self._port is not None:
            raise ConfigError("a sink is opened once: ask the mesh for another one")
        port = self._client.open()
        port.open_sink(self.name, self._credit, self)
        self._port = port
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the sink: what is not acknowledged goes to others."""
        self.close()

    def __iter__(self) -> Iterator[SinkOutcome]:
        """Yield outcomes until the sink is closed; with "auto", acknowledge each before the next one.

        Raises:
            MeshClosed: the mesh is closed meanwhile.
        """
        while True:
            try:
                outcome = self.get()
            except MeshClosed:
                if self._closed:
                    return
                raise
            yield outcome
            if self._is_auto:
                self.ack(outcome)

    def get(self, timeout: float | None = None) -> SinkOutcome:
        """Return the next outcome, which is to be acknowledged by `ack`.

        Args:
            timeout: seconds to wait for one; None for any time.

        Raises:
            TimeoutError: none has come.
            MeshClosed: the sink or the mesh is closed.
        """
        if self._port is None and not self._closed:
            self.__enter__()
        with self._changed:
            if not interruptible(partial(self._changed.wait_for, self._is_here), timeout, self._driver):
                raise TimeoutError(f"no outcome has come to sink {self.name!r} within {timeout:g} s")
            outcome = self._here.popleft()
            self._in_hand.add(outcome.task)
            return outcome

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until there is an outcome to `get`, or something else has happened.

        Args:
            ready: returns True if it has. It is called at once, after each outcome and after each `wake()`,
                with the sink's lock held: it may not wait for another thread.
            timeout: seconds; None for any time.

        Returns:
            False after the timeout.

        Raises:
            MeshClosed: the sink or the mesh is closed.
        """
        if self._port is None and not self._closed:
            self.__enter__()
        with self._changed:
            changed = partial(self._changed.wait_for, lambda: self._is_here() or ready())
            return interruptible(changed, timeout, self._driver)

    def wake(self) -> None:
        """Have a thread in `wait` ask again whether it is ready; any thread may call this."""
        with self._changed:
            self._changed.notify_all()

    def _is_here(self) -> bool:
        """Return True if an outcome is here that the hub has surely given to nobody else.

        Raises:
            MeshClosed: the sink or the mesh is closed.
        """
        is_here = bool(self._here) and self._clock() < self._until
        if not is_here and (self._closed or self._client.closed):
            raise MeshClosed("the sink is closed" if self._closed else "the mesh is closed")
        return is_here

    def ack(self, outcome: SinkOutcome) -> None:
        """Acknowledge an outcome: the hub may forget it, and its task has ended for whoever submitted it.

        Harmless when called again, and when the outcome has gone to another consumer meanwhile.
        """
        with self._changed:
            if outcome.task not in self._in_hand:
                return
            self._in_hand.remove(outcome.task)
            self._recent[outcome.task] = None
            if len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)
            self._acked.append(outcome.task)
            first = len(self._acked) == 1
        if first and self._port is not None:
            self._port.sink_acked(self.name)

    def close(self) -> None:
        """Take no more outcomes; a second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._here.clear()
            self._changed.notify_all()
        if self._port is not None:
            self._port.close_sink(self.name)
            interruptible(self._over.wait, CLOSING, self._driver)

    # --- of the port ----------------------------------------------------------------------------------------

    def put(self, message: SinkDeliver) -> None:
        """Take a delivery in."""
        found = [
            self._success(done.client, seq, payload, name, done)
            for done, name in zip(message.done, message.names, strict=True)
            for seq, payload in zip(done.seqs, done.payloads, strict=True)
        ]
        found += [
            self._failure(failure, name)
            for failure, name in zip(message.failed, message.failed_names, strict=True)
        ]
        with self._changed:
            again = [outcome.task for outcome in found if outcome.task in self._recent]
            for outcome in found:
                if not (self._closed or outcome.task in self._recent or outcome.task in self._in_hand):
                    self._here.append(outcome)
            first = again and not self._acked
            self._acked += again
            self._changed.notify_all()
        if first and self._port is not None:
            self._port.sink_acked(self.name)

    def renew(self, generation: int, until: float) -> None:
        """Give out what is here until then; if it is of an earlier generation, the hub has taken it back."""
        with self._changed:
            if generation != self._generation:
                self._generation = generation
                self._here.clear()
            self._until = until
            self._changed.notify_all()

    def take_acked(self) -> list[tuple[int, int]]:
        """Return the tasks whose outcomes were acknowledged since the last call."""
        with self._changed:
            acked, self._acked = self._acked, []
            return acked

    def end(self) -> None:
        """The hub has heard of the end, or the port has ended."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()

    def _success(self, client: int, seq: int, payload: Any, name: str, run: Any) -> SinkOutcome:
        return SinkOutcome(client, Value(seq, payload, name, run.attempt - run.returns), plain=self._is_plain)

    def _failure(self, failure: Failed, name: str) -> SinkOutcome:
        told = replace(failure, pickled=b"") if self._is_plain else failure
        value = Value(failure.seq, b"", name, failure.attempt, failed=told)
        return SinkOutcome(failure.client, value, plain=self._is_plain)


class SinkInput:
    """The way of messages from one client into one sink, which keeps their order.

    They end with the client, unless a consumer has them.

    Args:
        client: the client that puts them.
        sink: the name of the sink.
    """

    def __init__(self, client: Client, sink: str) -> None:
        spec = Spec(b"", SINK_VALUE_NAME, on_client_loss="cancel", kind=SINK_VALUE, sink=sink)
        self._client = client
        self._run = OpenRun(client.table, spec_number(spec), spec)

    def put(self, data: Buffer) -> TaskFuture[None]:
        """Put a message into the sink; the future ends once a consumer has acknowledged it.

        Raises:
            TooLarge: it is above `max_payload`.
            QueueFull: an event loop runs in this thread, and the mesh has no room for another task.
            MeshClosed: the mesh is closed.
        """
        what = f"a message for sink {self._run.spec.sink!r}"
        payload = dumps_encoded(data, what=what, memfd=self._client.table.memfd)
        check_size(payload, self._client.max_payload, what)
        return self._client.table.put(self._run, payload)
