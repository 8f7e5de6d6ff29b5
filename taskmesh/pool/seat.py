"""A seat: the supervisor's side of one slot, from its descriptors to the serials that it has reported."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Iterator

import msgspec

from taskmesh.core.events import SlotFinished, SlotReady, SlotReported
from taskmesh.errors import RemoteProtocolError
from taskmesh.pool import orders
from taskmesh.pool.channel import Inbound, Outbound, Parcel, pack
from taskmesh.pool.orders import OUTBOX_SIZE
from taskmesh.pool.outbox import BREAK, FAILURE, OutboxReader, Record, clock
from taskmesh.pool.output import OutputTail
from taskmesh.pool.system import System
from taskmesh.pool.tickets import TicketPipe
from taskmesh.wire import frames
from taskmesh.wire.blob import MAX_LIVE, Blob, live_descriptors
from taskmesh.wire.messages import SlotFailure, SlotResults, SlotSegment, SlotTasks, Spec

_READY = msgspec.msgpack.Decoder(orders.Ready)
_FAILURE = msgspec.msgpack.Decoder(SlotFailure)


class Handed:
    """Tasks on their way to the slot: `owed` tickets are still to be written."""

    __slots__ = ("count", "message", "owed")

    def __init__(self, message: SlotTasks) -> None:
        self.message = message
        self.count = self.owed = sum(len(run.seqs) for run in message.runs)


class Seat:
    """One slot's socket, tickets, outbox and output. Does no waiting: `SlotHost` says when something is ready.

    Attributes:
        slot, token: which slot, and which start of it. pid: 0 until the fork server has told it.
        handle: a descriptor of the process (pidfd), or None.
        ready: the slot has said that it is up. killed: we have ordered its death.
        expected: the lowest serial that has not been reported yet.
        watched: the host watches the socket for writability.
    """

    def __init__(self, slot: int, token: int, system: System) -> None:
        self.slot = slot
        self.token = token
        self.pid = 0
        self.handle: int | None = None
        self.ready = False
        self.killed = False
        self.expected = 0
        with contextlib.ExitStack() as undo:  # descriptors may run out half-way
            self.sock, self._slot_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(self.sock.close)
            undo.callback(self._slot_sock.close)
            self.tickets = TicketPipe()
            undo.callback(self.tickets.close)
            self.output = OutputTail()
            undo.callback(self.output.close)
            self._outbox_fd = system.memory(OUTBOX_SIZE)
            undo.callback(os.close, self._outbox_fd)
            self._outbox = OutboxReader(self._outbox_fd)
            undo.pop_all()
        self.sock.setblocking(False)
        self.inbound = Inbound(self.sock)
        self._outbound = Outbound(self.sock)
        self._backlog: deque[Handed] = deque()
        self._broken = False
        self.watched = False

    # --- birth ---

    def slot_fds(self) -> list[int]:
        """What the slot's process gets, in the order of `orders.Fork`."""
        return [
            self._slot_sock.fileno(),
            self.tickets.reader,
            self.output.slot_stdout,
            self.output.slot_stderr,
            self._outbox_fd,
        ]

    def let_go(self) -> None:
        """Closes our copies of the slot's ends: the fork server has its own now."""
        self._slot_sock.close()
        self.output.let_go()
        if self._outbox_fd >= 0:
            os.close(self._outbox_fd)
            self._outbox_fd = -1

    # --- tasks out ---

    def hand_over(self, message: SlotTasks) -> None:
        """Takes tasks for the slot; `pump` sends them."""
        self._backlog.append(Handed(message))

    def pump(self) -> bool:
        """Sends what waits, as far as pipe and socket take it.

        Returns:
            Whether it must be tried again later, since a large argument needs a descriptor and there is none.
        """
        while self._backlog:
            handed = self._backlog[0]
            handed.owed -= self.tickets.write(handed.owed, handed.message.generation)
            if handed.owed:
                return False  # the pipe is full: again when the slot has reported some
            body, blobs = frames.encode_local(handed.message)
            try:
                fds = [blob.to_fd() for blob in blobs]
            except OSError:
                return True
            self._backlog.popleft()
            self._put(Parcel(pack(orders.TASKS, body, len(fds)), fds, handed))
        return False

    def stop(self) -> None:
        """Tells the slot to end when it has done what it was given."""
        self._put(Parcel(pack(orders.STOP)))

    def _put(self, parcel: Parcel) -> None:
        if self._broken:
            return
        try:
            self._outbound.put(parcel)
        except OSError:  # the slot is gone: its exit will be told, and the tickets say what was not started
            self._broken = True

    @property
    def wants_write(self) -> bool:
        """Whether the socket has not taken everything yet."""
        return bool(self._outbound.queue) and not self._broken

    def write(self) -> None:
        """Called when the socket is writable."""
        try:
            self._outbound.flush()
        except OSError:
            self._broken = True

    def take_back(self) -> int:
        """Takes every task back that has not started; returns how many.

        Messages that have not left yet and none of whose tasks has started are dropped; the specs in them still go.
        """
        count = left = self.tickets.take_back() + sum(handed.owed for handed in self._backlog)
        specs: list[tuple[int, Spec]] = []
        for handed in self._backlog:
            handed.owed = 0
        while self._backlog and self._backlog[-1].count <= left:
            handed = self._backlog.pop()
            left -= handed.count
            specs[:0] = handed.message.specs
        queue = self._outbound.queue
        while not self._backlog and queue and not queue[-1].begun:
            last = queue[-1].keep
            if not isinstance(last, Handed) or last.count > left:
                break
            queue.pop()
            left -= last.count
            specs[:0] = last.message.specs
        if specs:
            self._backlog.append(Handed(SlotTasks(first=0, generation=0, specs=specs, runs=[])))
        return count

    # --- results in ---

    def read(self) -> Iterator[SlotReady | SlotFinished | SlotReported]:
        """What has come over the socket, by one read of it.

        Raises:
            BlockingIOError: nothing. EOFError: the slot's end is closed. RemoteProtocolError: it talks nonsense.
        """
        try:
            alive = self.inbound.receive()
        except BlockingIOError:
            raise
        except OSError as error:
            raise EOFError from error
        if not alive:
            raise EOFError
        for kind, body, fds in self.inbound.frames():
            event = self._event(kind, body, fds)
            if event is not None:
                yield event

    def _event(
        self, kind: int, body: memoryview, fds: list[int]
    ) -> SlotReady | SlotFinished | SlotReported | None:
        if kind == orders.RESULTS:
            results = frames.from_slot.decode_local(body, fds)
            if fds:
                _spare_descriptors(results)
            fresh = self._fresh(results)
            return SlotFinished(self.slot, fresh) if fresh is not None else None
        if kind == orders.PROGRESS:
            return SlotReported(self.slot, frames.from_slot.decode_local(body, fds))
        if kind == orders.READY:
            self.ready = True
            self.pid = _READY.decode(body).pid
            return SlotReady(self.slot, self.pid)
        raise RemoteProtocolError(f"slot {self.slot} sent a frame of unknown kind {kind}")

    def peek(self) -> SlotFinished | None:
        """What stands in the outbox and has not been reported."""
        began, records = self._outbox.read()
        if not records or records[-1].serial < self.expected:
            return None
        fresh = self._fresh(results_of(began, records))
        return SlotFinished(self.slot, fresh) if fresh is not None else None

    def _fresh(self, results: SlotResults) -> SlotResults | None:
        """The results without those that were reported before; None when nothing is left.

        A result can come twice: peeked from the outbox, and over the socket later.
        """
        expected = top = self.expected
        done = []
        for segment in results.done:
            size = len(segment.payloads)
            end = segment.first + size
            if end <= expected:
                continue
            if segment.first < expected:
                known = expected - segment.first
                share = segment.elapsed * (size - known) / size
                segment = SlotSegment(expected, segment.payloads[known:], share)
            done.append(segment)
            top = max(top, end)
        failed = [failure for failure in results.failed if failure.serial >= expected]
        if failed:
            top = max(top, failed[-1].serial + 1)
        if top == expected:
            return None
        self.expected = top
        return SlotResults(done, failed, results.sent, results.idle)

    def close(self) -> None:
        """Closes everything; what was in flight is lost."""
        self.let_go()
        self.sock.close()
        self.inbound.close_fds()
        self.tickets.close()
        self.output.close()
        self._outbox.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


def results_of(began: float, records: list[Record]) -> SlotResults:
    """The outbox's records as the message that the slot would have sent."""
    done: list[SlotSegment] = []
    failed: list[SlotFailure] = []
    previous = began
    fresh = True
    for record in records:
        if record.flags & FAILURE:
            failed.append(_FAILURE.decode(record.data))
            fresh = True
        elif fresh or record.flags & BREAK:
            done.append(SlotSegment(record.serial, [record.data], record.ended - previous))
            fresh = False
        else:
            done[-1].payloads.append(record.data)
            done[-1].elapsed += record.ended - previous
        previous = record.ended
    return SlotResults(done, failed, clock())


def _spare_descriptors(results: SlotResults) -> None:
    """Keeps large results as mappings alone once many descriptors are open: a program may hold thousands of them."""
    for segment in results.done:
        for payload in segment.payloads:
            if isinstance(payload, Blob) and live_descriptors() > MAX_LIVE and payload.parts:
                payload.close()
