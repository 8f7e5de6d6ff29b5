"""The supervisor's handles of a slot, from descriptors to reported serials, and of the slot's process."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence

import msgspec

from taskmesh.core.events import SlotAsked, SlotFinished, SlotReady, SlotReported
from taskmesh.errors import ProtocolError, RemoteProtocolError
from taskmesh.messages import frames
from taskmesh.messages.runs import Spec
from taskmesh.messages.slot_messages import FromSlot, SlotFailure, SlotResults, SlotSegment, SlotTasks
from taskmesh.pool.slots import messages
from taskmesh.pool.slots.channel import BUFFER, SMALL_ROOM, Inbound, OutboundToProcess, pack
from taskmesh.pool.slots.outbox import (
    BREAK,
    FAILURE,
    STACK_SIGNAL,
    OutboxReader,
    Record,
    clock,
    create_outbox,
)
from taskmesh.pool.slots.output import OutputTail
from taskmesh.pool.slots.result_batch import LONG
from taskmesh.pool.slots.threads.control import ThreadControl
from taskmesh.pool.slots.tickets import TicketPipe
from taskmesh.serialize.error_payload import refused
from taskmesh.shm.blob import Blob
from taskmesh.system.session import send_signal

_REPORT = msgspec.msgpack.Decoder(FromSlot)  # our own encoder made it: wire's checks would take longer
_READY = msgspec.msgpack.Decoder(messages.Ready)
_PERMIT_REQUEST = msgspec.msgpack.Decoder(messages.PermitRequest)
_ENCODE = msgspec.msgpack.Encoder().encode
_FAILURE = msgspec.msgpack.Decoder(SlotFailure)


SlotSocketEvent = SlotReady | SlotFinished | SlotReported | SlotAsked


class SlotProcess:
    """One process, its output and its slots.

    Args:
        token: new for each process.
        number: of a process that slots share; None of one with a single slot.

    Attributes:
        token: as given.
        number: as given.
        pid: its process id; 0 until the fork server has reported it.
        pidfd: a descriptor of the process, or None.
        killed: we have ordered its death.
        out_of_memory: we have ordered it because memory runs out.
        output: its pipes.
        control: the socket to what runs its threads; None in a process of one slot.
        slots: its slots, by number.

    Raises:
        OSError: no descriptor is left.
    """

    def __init__(self, token: int, number: int | None = None) -> None:
        self.token = token
        self.number = number
        self.pid = 0
        self.pidfd: int | None = None
        self.killed = False
        self.out_of_memory = False
        self.output = OutputTail()
        try:
            self.control = None if number is None else ThreadControl()
        except OSError:
            self.output.close()
            raise
        self.slots: dict[int, SlotHandle] = {}

    def forked(self, pid: int, pidfd: int | None) -> None:
        """Take note of its ids, and close our copies of what the fork server has by now."""
        self.pid, self.pidfd = pid, pidfd
        self.output.close_slot_ends()
        if self.control is not None:
            self.control.close_slot_end()

    def fds(self, slot: SlotHandle) -> list[int]:
        """Return the descriptors for the process and its first slot, in the order of `messages.Fork`."""
        fds = [*slot.slot_fds(), *self.output.slot_ends]
        return fds if self.control is None else [*fds, self.control.slot_end.fileno()]

    def close(self) -> None:
        self.output.close()
        if self.control is not None:
            self.control.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class QueuedTasks:
    """Tasks on their way to the slot.

    Attributes:
        message: the tasks.
        count: how many they are.
        unwritten: how many of their tickets are not in the pipe yet.
    """

    __slots__ = ("count", "message", "unwritten")

    def __init__(self, message: SlotTasks) -> None:
        self.message = message
        count = 0
        for run in message.runs:
            count += len(run.seqs)
        self.count = self.unwritten = count


class SlotHandle:
    """One slot's socket, tickets and outbox. It never waits: `SlotSupervisor` polls for it.

    Args:
        slot: the slot's number.
        process: its process.
        path: where the process finds modules.

    Attributes:
        slot: as given.
        process: as given.
        ready: the slot has reported that it is up.
        expected: the lowest serial that has not been reported yet.
        open: how many of its tasks have not been reported; counted where slots share a process.
        at_end: its socket has ended, or a frame was invalid: no more is read.
        trouble: why, for the log of its exit.

    Raises:
        OSError: no descriptor, no memory or no room is left.
    """

    def __init__(self, slot: int, process: SlotProcess, path: Sequence[str] = ()) -> None:
        self._program = list(path), b""
        self.slot = slot
        self.process = process
        self.ready = False
        self.expected = self.open = 0
        with contextlib.ExitStack() as undo:  # descriptors may run out half-way
            self.sock, self._slot_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(self.sock.close)
            undo.callback(self._slot_sock.close)
            self.tickets = TicketPipe()
            undo.callback(self.tickets.close)
            self._outbox_fd = create_outbox()
            undo.callback(os.close, self._outbox_fd)
            self._outbox = OutboxReader(self._outbox_fd)
            undo.pop_all()
        self.sock.setblocking(False)
        room = BUFFER if process.control is None else SMALL_ROOM
        self.inbound = Inbound(self.sock, room=room)
        self._outbound = OutboundToProcess(self.sock)
        self._backlog: deque[QueuedTasks] = deque()
        self.at_end = False
        self.trouble = ""

    # --- start ---

    def slot_fds(self) -> list[int]:
        """Return the descriptors for the slot: socket, tickets, outbox."""
        return [self._slot_sock.fileno(), self.tickets.reader, self._outbox_fd]

    def close_slot_ends(self) -> None:
        """Close our copies of the slot's ends: its process has its own now."""
        self._slot_sock.close()
        if self._outbox_fd >= 0:
            os.close(self._outbox_fd)
            self._outbox_fd = -1

    # --- tasks out ---

    def hand_over(self, message: SlotTasks) -> None:
        """Queue tasks for the slot; `pump` sends them."""
        queued = QueuedTasks(message)
        self._backlog.append(queued)
        self.open += queued.count

    def pump(self) -> bool:
        """Send what waits, as far as pipe and socket take it.

        Returns:
            True to try again later, since a large argument needs a descriptor and there is none.
        """
        while self._backlog:
            queued = self._backlog[0]
            queued.unwritten -= self.tickets.write(queued.unwritten, queued.message.generation)
            if queued.unwritten:
                return False  # the pipe is full: again when the slot has reported some
            body, blobs = frames.encode_local(queued.message)
            try:
                fds = [blob.to_fd() for blob in blobs]
            except OSError as error:
                if error.errno != errno.EFBIG:
                    return True
                queued.message = _without_too_large(queued.message)  # it will never go
                continue
            self._backlog.popleft()
            program = _program()
            if program != self._program:
                self._program = program
                path = [os.fsencode(entry) for entry in program[0] if isinstance(entry, str)]
                told = messages.Program(path, program[1])
                self._outbound.send(pack(messages.PROGRAM, _ENCODE(told)))
            self._outbound.send(pack(messages.TASKS, body, len(fds)), fds, queued)
        return False

    def reply(self, reply: messages.PermitReply) -> None:
        """Tell the slot's task whether it may wait for tasks of its own."""
        self._outbound.send(pack(messages.PERMIT_REPLY, _ENCODE(reply)))

    def cancel(self, serial: int) -> bool:
        """Mark the task with this serial as cancelled; return False if it has not looked for that."""
        return self._outbox.cancel(serial)

    def ask_stack(self) -> bool:
        """Have the slot write where its threads are; return False if that is not possible."""
        try:
            self._outbox.forget_stack()
        except OSError:  # no memory or room is left
            return False
        control = self.process.control
        if control is not None and self.ready:
            control.send(messages.STACK, self.slot)
            return True
        return self.ready and send_signal(self.process.pidfd, STACK_SIGNAL)

    def stack(self) -> str:
        """Return what it has written since."""
        return self._outbox.stack()

    def stop(self) -> None:
        """Order the slot to end when it has done its tasks."""
        self._outbound.send(pack(messages.STOP))

    @property
    def unsent(self) -> bool:
        return bool(self._backlog or self._outbound.queue)

    @property
    def wants_write(self) -> bool:
        """True if the socket has not taken everything yet."""
        return self._outbound.wants_write

    def write(self) -> None:
        """Send more; called when the socket is writable."""
        self._outbound.flush()

    def take_back(self, generation: int) -> int:
        """Take back every task that has not started; return how many.

        Messages that have not left yet and none of whose tasks has started are dropped. The specs in them
        still go.
        """
        count = left = self.left()
        self.open -= count
        specs: list[tuple[int, Spec | None]] = []
        for queued in self._backlog:
            queued.unwritten = 0
        while self._backlog and self._backlog[-1].count <= left:
            queued = self._backlog.pop()
            left -= queued.count
            specs[:0] = queued.message.specs
        queue = self._outbound.queue
        while not self._backlog and queue and not queue[-1].begun:
            last = queue[-1].keep
            if not isinstance(last, QueuedTasks) or last.count > left:
                break
            queue.pop()
            left -= last.count
            specs[:0] = last.message.specs
        if specs:
            self._backlog.append(QueuedTasks(SlotTasks(self.expected, generation, specs, [])))
        return count

    def left(self) -> int:
        """Take all tickets that are left; return how many, with those that were never written."""
        return self.tickets.take_back() + sum(queued.unwritten for queued in self._backlog)

    # --- results in ---

    def read(self) -> list[SlotSocketEvent]:
        """Return what one read of the socket gives; sets `at_end` when no more will come."""
        events: list[SlotSocketEvent] = []
        self._read_into(events)
        return events

    def read_all(self) -> list[SlotSocketEvent]:
        events: list[SlotSocketEvent] = []
        while self._read_into(events):
            pass
        return events

    def _read_into(self, events: list[SlotSocketEvent]) -> bool:
        """Read once; return False if there was nothing to read."""
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

    def _event(self, kind: int, body: memoryview, fds: list[int]) -> SlotSocketEvent | None:
        if kind in {messages.RESULTS, messages.PROGRESS, messages.LOGS}:
            message = frames.from_slot.decode_local(body, fds, relayed=True) if fds else _REPORT.decode(body)
            if isinstance(message, SlotResults):
                return self._finished(message)
            return SlotReported(self.slot, message)
        if kind == messages.READY:
            if self.ready:
                raise RemoteProtocolError(f"slot {self.slot} has reported twice that it is up")
            self.ready = True
            self.close_slot_ends()
            self.process.pid = _READY.decode(body).pid
            return SlotReady(self.slot, self.process.pid)
        if kind == messages.PERMIT_REQUEST:
            asked = _PERMIT_REQUEST.decode(body)
            return SlotAsked(self.slot, asked.serial, asked.lends)
        raise RemoteProtocolError(f"slot {self.slot} sent a frame of unknown kind {kind}")

    def peek(self) -> list[SlotSocketEvent]:
        """Return what has come over the socket, and then what is in the outbox and not reported yet.

        The outbox is read first and the socket second: what the slot had flushed when the outbox was read is
        in the socket by now. The other way round a flush in between would be reported after its successors.
        """
        began, records = self._outbox.read()
        if not records or records[-1].serial < self.expected:
            return []
        events = self.read_all()
        if self.trouble:  # what was lost came before what stands there
            return events
        try:
            finished = self._finished(results_of(began, records))
        except msgspec.DecodeError as error:  # a task has written into its process's memory at random
            self.trouble = f"its outbox is damaged: {error}"
            return events
        return events if finished is None else [*events, finished]

    def _finished(self, results: SlotResults) -> SlotFinished | None:
        fresh = self._fresh(results)
        if fresh is None:
            return None
        if self.process.control is not None:
            self.open -= len(fresh.failed) + sum(len(segment.payloads) for segment in fresh.done)
        return SlotFinished(self.slot, fresh)

    def _fresh(self, results: SlotResults) -> SlotResults | None:
        """Return the results that were not reported before; None if nothing is left.

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
        """Close everything; what was in flight is lost."""
        self.close_slot_ends()
        self.sock.close()
        self.inbound.close_fds()
        self.tickets.close()
        self._outbox.close()


def _program() -> tuple[list[str], bytes]:
    """Return the program's sys.path, and the key of its multiprocessing."""
    processes = sys.modules.get("multiprocessing.process")
    authkey = b"" if processes is None else bytes(processes.current_process().authkey)
    return sys.path[:], authkey


def _without_too_large(message: SlotTasks) -> SlotTasks:
    """Return the same tasks, but those fail whose arguments are larger than a file of this process may be."""
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
                "(RLIMIT_FSIZE). Raise `ulimit -f` where the worker, or the embedded mesh, is started"
            )
    return payload


def results_of(began: float, records: list[Record]) -> SlotResults:
    """Return the outbox's records as the message that the slot would have sent."""
    done: list[SlotSegment] = []
    failed: list[SlotFailure] = []
    previous = began
    fresh = True
    for record in records:
        if record.flags & FAILURE:
            failed.append(_FAILURE.decode(record.data))
            fresh = True
        elif fresh or record.flags & BREAK or record.ended - previous >= LONG:
            done.append(SlotSegment(record.serial, [record.data], record.ended - previous))
            fresh = record.ended - previous >= LONG
        else:
            done[-1].payloads.append(record.data)
            done[-1].elapsed += record.ended - previous
        previous = record.ended
    return SlotResults(done, failed, clock())
