"""The feed of a map: turns items into chunks, submits them as fast as results make room, splits what crashed.

Whoever is at hand does the work: the consumer while it waits for results, the delivery thread while it does
not. An iterable with a `buffersize` is drawn by the consumer alone, as Executor.map does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

from taskmesh.client.functions import Form
from taskmesh.client.pace import Pace
from taskmesh.client.session import Session
from taskmesh.client.source import Source
from taskmesh.errors import ForkedMeshError, SerializationError, TooLarge
from taskmesh.future import Batch, TaskFuture
from taskmesh.outcomes.attendance import Bell
from taskmesh.outcomes.outcome import Success
from taskmesh.serialize.payload import check_size, dumps_call, dumps_chunk
from taskmesh.wire.messages import Failed

_CRASHES = frozenset({"crash", "oom", "hard_timeout"})


class Piece:
    """Items that travel together, and what became of them.

    Attributes:
        items: as the source gave them; None once they are not needed any more. count: how many they are.
        future: of the task that they are; None when it could not be submitted for `error`.
        parts: what it was split into.
        settled: it has its outcome.
    """

    __slots__ = ("_feed", "count", "error", "future", "items", "parts", "settled")

    def __init__(self, feed: Feed, items: Sequence[Any]) -> None:
        self._feed = feed
        self.items: Sequence[Any] | None = items
        self.count = len(items)
        self.future: TaskFuture[Any] | None = None
        self.error: BaseException | None = None
        self.parts: list[Piece] | None = None
        self.settled = False

    def __call__(self, future: object) -> None:
        """Told by the port's thread: the task has ended."""
        self._feed.arrive(self)


class Feed:
    """One map on its way.

    Attributes:
        source: the items that are left.
        bell: rings when the consumer should look.
        attended: the consumer waits, and will do the work itself.
    """

    def __init__(
        self,
        session: Session,
        form: Form,
        source: Source,
        pace: Pace,
        *,
        ordered: bool = True,
        buffersize: int | None = None,
    ) -> None:
        self.source = source
        self.bell = Bell()
        self.attended = False
        self._session = session
        self._pace = pace
        self._ordered = ordered
        self._buffersize = buffersize
        self._place: deque[Piece] = deque()  # all of them in order, or those with their outcome
        self._untaken = 0
        self._held = 0
        self._flying: set[Piece] = set()
        self._arrivals: deque[Piece] = deque()
        self._scheduled = False
        self._wanted = False
        self._torn = False
        self._busy = False
        self._turn = threading.Lock()
        group = session.new_group()
        self._single: Batch = form.grouped(group)
        self._chunk: Batch = form.chunked(group)
        self._early = form.options.acks == "early"
        self._limit = session.config.pool.max_payload if session.wired else 0

    @property
    def label(self) -> str:
        """The task's name, for people."""
        return self._single.spec.name

    @property
    def active(self) -> bool:
        """It will submit more by itself, or waits for what it has submitted."""
        if self._torn or self._is_forked:
            return False
        return bool(self._flying) or (self._buffersize is None and not self.source.exhausted)

    @property
    def futures(self) -> list[TaskFuture[Any]]:
        """What has been submitted and not ended."""
        return [piece.future for piece in list(self._flying) if piece.future is not None]

    @property
    def ended(self) -> bool:
        """Everything has been taken, or an interrupt has lost what is left."""
        return self._torn or (self.source.exhausted and not self._untaken)

    def start(self) -> None:
        """Submits the first chunks, in the caller's thread.

        Raises:
            MeshClosed: the mesh is closed; or why it cannot be opened.
        """
        try:
            self._session.open()
            if self._buffersize is None:
                self._session.feeds.add(self)
            self.work(draw=True)
        except BaseException:  # Ctrl-C: the caller gets nothing that could be closed
            self.abandon()
            raise

    def stop(self) -> None:
        """Submits no more items."""
        self.source.exhausted = True
        self._session.feeds.discard(self)
        self._session.table.nudge()
        self.bell.ring()

    def abandon(self) -> None:
        """Nobody wants the rest: gives up what has no outcome yet."""
        self.stop()
        self._session.table.cancel(self.futures)

    # --- the consumer's side

    def check_process(self) -> None:
        """Refuses to go on in a forked child, where nothing arrives and a lock may be held by nobody.

        Raises:
            ForkedMeshError: this is one.
        """
        if self._is_forked:
            raise ForkedMeshError("this map belongs to the parent process: call map() of a mesh opened here")

    @property
    def _is_forked(self) -> bool:
        return isinstance(self._session.table.refusal, ForkedMeshError)

    def take(self) -> Piece | None:
        """The next piece with its outcome, None when that is not here yet."""
        place = self._place
        while place and (parts := place[0].parts) is not None:
            place.popleft()
            place.extendleft(reversed(parts))
        if place and place[0].settled:
            self._untaken -= 1
            return place.popleft()
        return None

    def interrupted(self) -> None:
        """Ctrl-C has struck the consumer: gives up what is left.

        At a prompt the traceback keeps the iterator of a `for` loop, which nobody can reach to close it: the
        rest would go on running, and everything that is submitted next would wait among it.
        """
        if self._flying or not self.source.exhausted:
            self._break_off("its results were waited for")

    def given(self, count: int) -> None:
        """The user has all items of a piece: that makes room for others."""
        self._held -= count

    # --- the port's side

    def arrive(self, piece: Piece) -> None:
        """A piece has ended."""
        self._arrivals.append(piece)
        self.bell.ring()
        if not self.attended:
            self.schedule()

    def schedule(self) -> None:
        """Leaves the work to the delivery thread, if there is any."""
        if self._arrivals and not self._scheduled:
            self._scheduled = True
            self._session.delivery.put((self._work_unattended,))

    # --- the work

    def work(self, *, draw: bool) -> None:
        """Takes arrivals in and submits what there is room for, unless somebody else is at it."""
        self._wanted = True
        while self._wanted and self._take_turn(draw=draw):
            pass
        if self.source.exhausted and not self._flying and self in self._session.feeds:
            self.stop()

    def resume(self) -> None:
        """Has the delivery thread look once, whatever an interrupt may have left undone."""
        self._session.delivery.put((self._work_unattended,))

    def _take_turn(self, *, draw: bool) -> bool:
        """One turn at the work; False when somebody else is at it."""
        mine = False
        try:
            with self._turn:  # no interrupt comes between this and the flags, as it may after acquire()
                if not self._busy:
                    mine = self._busy = True
            if mine:
                self._wanted = False
                while self._arrivals:
                    self._settle(self._arrivals.popleft())
                if draw or self._buffersize is None:
                    self._submit_more()
        except BaseException:
            if mine:
                self._tear()
            raise
        finally:
            if mine:
                self._busy = False
        return mine

    def _tear(self) -> None:
        """An interrupt came upon the work: a piece may be lost, so that the rest is given up."""
        self._torn = True
        self._break_off("it submitted items")

    def _break_off(self, when: str) -> None:
        if self.source.failure is None:
            self.source.failure = CancelledError(
                f"the map of {self.label} was interrupted while {when}, and the rest of it was "
                "cancelled: call map() again for what is missing"
            )
        self.abandon()

    def _work_unattended(self) -> None:
        self._scheduled = False
        self.work(draw=False)
        self.bell.ring()  # a consumer who came meanwhile left the work to us, and we may not draw for it

    def _submit_more(self) -> None:
        source, pace, bound = self.source, self._pace, self._buffersize
        while not source.exhausted:
            size = pace.size(source.left)
            if bound is None:
                if len(self._flying) >= pace.ahead:
                    return
            else:
                size = min(size, bound)
                if self._held and self._held + size > bound:
                    return
            items = source.draw(size)
            if items:
                piece = Piece(self, items)
                if self._ordered:
                    self._place.append(piece)
                self._submit(piece)

    def _submit(self, piece: Piece) -> None:
        """Submits a piece. Its error, if that fails, is the outcome."""
        self._untaken += 1
        self._held += piece.count
        self._flying.add(piece)
        try:
            piece.future = self._put(piece.items or [])
        except TooLarge as error:
            if piece.count > 1:
                self._flying.discard(piece)
                self._split(piece)
                return
            piece.error = error
        except Exception as error:  # noqa: BLE001  raised in its place
            piece.error = error
            if not isinstance(error, SerializationError):  # it is not this item, it is the mesh
                self.source.exhausted = True
        except BaseException as error:
            if not self._session.delivery.is_here:  # an interrupt of the caller's own
                raise
            piece.error = error  # an item's own doing; the delivery thread has nobody to raise it to
        finally:
            if piece.parts is None and (piece.future is None or not piece.future._watch(piece)):
                self._arrivals.append(piece)
                self._wanted = True

    def _put(self, items: Sequence[Any]) -> TaskFuture[Any]:
        memfd, starred, label = not self._session.wired, self.source.starred, self.label
        first: tuple[Any, ...] = items[0] if starred else (items[0],)
        if len(items) == 1:
            batch, payload = self._single, dumps_call(first, {}, where=label, memfd=memfd)
        else:
            batch = self._chunk
            payload = dumps_chunk(items, where=label, memfd=memfd, starred=starred)
            self._pace.weigh(len(items), len(payload))
        if self._limit:
            check_size(payload, self._limit, f"the call of {label}", first)
        return self._session.table.put(batch, payload)

    def _settle(self, piece: Piece) -> None:
        self._flying.discard(piece)
        future = piece.future
        origin = None if future is None or future.cancelled() else future._origin
        if isinstance(origin, Success):
            self._pace.note(piece.count, origin.seconds)
        elif isinstance(origin, Failed) and future is not None:
            future._retrieved()  # by the map, which raises it in its place
            if self._should_split(piece, origin):
                self._split(piece)
                return
        piece.items = None
        piece.settled = True
        if not self._ordered:
            self._place.append(piece)

    def _should_split(self, piece: Piece, failed: Failed) -> bool:
        if piece.count == 1 or piece.items is None or self._session.closed:
            return False
        return failed.kind == "argument" or (failed.kind in _CRASHES and not self._early)

    def _split(self, piece: Piece) -> None:
        """Each item becomes a task of its own, so that only the guilty one is blamed."""
        items, piece.items = piece.items or [], None
        self._untaken -= 1
        self._held -= piece.count
        parts = [Piece(self, [item]) for item in items]
        for part in parts:
            self._submit(part)
        piece.parts = parts
