"""A seat: the supervisor's side of one slot, from its descriptors to the serials that it has reported."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Sequence

import msgspec

from taskmesh.core.events import SlotAsked, SlotFinished, SlotReady, SlotReported
from taskmesh.errors import ProtocolError, RemoteProtocolError
from taskmesh.framing import frames
from taskmesh.pool import orders
from taskmesh.pool.channel import Inbound, Outbound, pack
from taskmesh.pool.orders import OUTBOX_SIZE
from taskmesh.pool.outbox import BREAK, FAILURE, OutboxReader, Record, clock
from taskmesh.pool.output import OutputTail
from taskmesh.pool.tickets import TicketPipe
from taskmesh.serialize.error_payload import refused
from taskmesh.shm.blob import Blob
from taskmesh.system.services import System
from taskmesh.wire.runs import Spec
from taskmesh.wire.slot_messages import (
    FromSlot,
    SlotFailure,
    SlotResults,
    SlotSegment,
    SlotTasks,
)

_REPORT = msgspec.msgpack.Decoder(FromSlot)  # our own encoder made it: wire's checks would take longer
_READY = msgspec.msgpack.Decoder(orders.Ready)
_ASK = msgspec.msgpack.Decoder(orders.Ask)
_ENCODE = msgspec.msgpack.Encoder().encode
_FAILURE = msgspec.msgpack.Decoder(SlotFailure)


FromSeat = SlotReady | SlotFinished | SlotReported | SlotAsked


class Handed:
    """Tasks on their way to the slot: `owed` tickets are still to be written."""

    __slots__ = ("count", "message", "owed")

    def __init__(self, message: SlotTasks) -> None:
        self.message = message
        count = 0
        for run in message.runs:
            count += len(run.seqs)
        self.count = self.owed = count


class Seat:
    """One slot's socket, tickets, outbox and output. Never waits: `SlotHost` says when something is ready.

    Attributes:
        slot, token: which slot, and which start of it. pid: 0 until the fork server has told it.
        handle: a descriptor of the process (pidfd), or None.
        ready: the slot has said that it is up. killed: we have ordered its death.
        out_of_memory: we have ordered it because memory runs out.
        expected: the lowest serial that has not been reported yet.
        at_end: its socket has ended, or talked nonsense: no more is read. trouble: why, for its exit's log.
    """

    def __init__(self, slot: int, token: int, system: System) -> None:
        self.slot = slot
        self.token = token
        self.pid = 0
        self.handle: int | None = None
        self.ready = False
        self.killed = False
        self.out_of_memory = False
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
        self.at_end = False
        self.trouble = ""

    # --- birth ---

    def slot_fds(self) -> list[int]:
        """What the slot's process gets, in the order of `orders.Fork`."""
        return [
            self._slot_sock.fileno(),
            self.tickets.reader,
            *self.output.slot_ends,
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
            except OSError as error:
                if error.errno != errno.EFBIG:
                    return True
                handed.message = _without_too_large(handed.message)  # it will never go
                continue
            self._backlog.popleft()
            self._send(pack(orders.TASKS, body, len(fds)), fds, handed)
        return False

    def answer(self, answer: orders.Answer) -> None:
        """Tells the slot's task whether it has a place for tasks of its own."""
        self._send(pack(orders.ANSWER, _ENCODE(answer)))

    def cancel(self, serial: int) -> bool:
        """Tells the task with this serial that it has been cancelled; False if it has not asked for that."""
        return self._outbox.cancel(serial)

    def stop(self) -> None:
        """Tells the slot to end when it has done what it was given."""
        self._send(pack(orders.STOP))

    def _send(self, data: bytes, fds: Sequence[int] = (), keep: object = None) -> None:
        if self._broken:
            return
        try:
            self._outbound.send(data, fds, keep)
        except OSError:  # the slot is gone: its exit will be told, and the tickets say what was not started
            self._broken = True

    @property
    def unsent(self) -> bool:
        """Whether anything waits for the slot."""
        return bool(self._backlog or self._outbound.queue)

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

    def take_back(self, generation: int) -> int:
        """Takes every task back that has not started; returns how many.

        Messages that have not left yet and none of whose tasks has started are dropped. The specs in them
        still go.
        """
        count = left = self.left()
        specs: list[tuple[int, Spec | None]] = []
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
            self._backlog.append(Handed(SlotTasks(self.expected, generation, specs, [])))
        return count

    def left(self) -> int:
        """Takes all tickets that nobody took, and counts them, with those that were never written."""
        return self.tickets.take_back() + sum(handed.owed for handed in self._backlog)

    # --- results in ---

    def read(self) -> list[FromSeat]:
        """What has come over the socket, by one read of it; `at_end` is set when no more will."""
        events: list[FromSeat] = []
        self._read_into(events)
        return events

    def read_all(self) -> list[FromSeat]:
        """What has come over the socket."""
        events: list[FromSeat] = []
        while self._read_into(events):
            pass
        return events

    def _read_into(self, events: list[FromSeat]) -> bool:
        """Reads once; False when there was nothing to be read."""
        if self.at_end:
            return False
        try:
            if not self.inbound.receive():
                self.at_end = True
                return False
            for kind, body, fds in self.inbound.frames():
                event = self._event(kind, body, fds)
                if event is not None:
                    events.append(event)
        except BlockingIOError:
            return False
        except OSError:
            self.at_end = True
            return False
        except (ProtocolError, msgspec.DecodeError) as error:
            self.trouble = str(error)
            self.at_end = True
            return False
        return True

    def _event(self, kind: int, body: memoryview, fds: list[int]) -> FromSeat | None:
        if kind in {orders.RESULTS, orders.PROGRESS}:
            message = frames.from_slot.decode_local(body, fds) if fds else _REPORT.decode(body)
            if isinstance(message, SlotResults):
                fresh = self._fresh(message)
                return SlotFinished(self.slot, fresh) if fresh is not None else None
            return SlotReported(self.slot, message)
        if kind == orders.READY:
            if self.ready:
                raise RemoteProtocolError(f"slot {self.slot} has said twice that it is up")
            self.ready = True
            self.pid = _READY.decode(body).pid
            return SlotReady(self.slot, self.pid)
        if kind == orders.ASK:
            return SlotAsked(self.slot, _ASK.decode(body).serial)
        raise RemoteProtocolError(f"slot {self.slot} sent a frame of unknown kind {kind}")

    def peek(self) -> list[FromSeat]:
        """What stands in the outbox and has not been reported, after all that was flushed before it.

        The look comes first and the socket second: what the slot had flushed when the outbox was read is in
        the socket by now. The other way round a flush in between would be told too late, after its
        successors.
        """
        began, records = self._outbox.read()
        if not records or records[-1].serial < self.expected:
            return []
        events = self.read_all()
        if self.trouble:  # what was lost came before what stands there
            return events
        try:
            fresh = self._fresh(results_of(began, records))
        except msgspec.DecodeError as error:  # a task has written into its process's memory at random
            self.trouble = f"its outbox is damaged: {error}"
            return events
        if fresh is not None:
            events.append(SlotFinished(self.slot, fresh))
        return events

    def _fresh(self, results: SlotResults) -> SlotResults | None:
        """The results without those that were reported before; None when nothing is left.

        A result can come twice: peeked from the outbox, and over the socket later.
        """
        expected = top = self.expected
        if len(results.done) == 1 and not results.failed and results.done[0].first >= expected:
            self.expected = results.done[0].first + len(results.done[0].payloads)
            return results if self.expected > expected else None
        done = []
        for segment in results.done:
            size = len(segment.payloads)
            known = expected - segment.first
            if known <= 0:
                done.append(segment)
            elif known < size:
                share = segment.elapsed * (size - known) / size
                done.append(SlotSegment(expected, segment.payloads[known:], share))
            top = max(top, segment.first + size)
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


def _without_too_large(message: SlotTasks) -> SlotTasks:
    """The same tasks, but those fail whose arguments are larger than any file of this process may be."""
    runs = [
        msgspec.structs.replace(run, payloads=[_passable(payload) for payload in run.payloads])
        for run in message.runs
    ]
    return msgspec.structs.replace(message, runs=runs)


def _passable(payload: bytes | Blob) -> bytes | Blob:
    try:
        if isinstance(payload, Blob):
            payload.to_fd()
    except OSError as error:
        if error.errno == errno.EFBIG:
            return refused(
                f"{len(payload):,} bytes of arguments are more than a file of the pool's process may hold "
                "(RLIMIT_FSIZE). Cure: raise `ulimit -f` where the worker, or the embedded mesh, is started"
            )
    return payload


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
