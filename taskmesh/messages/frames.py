"""Messages to ZeroMQ frames, slot messages to a socketpair's, and back. Imports no pickle: the hub uses it.

A message is one frame, msgpack: a map with its tag first, then the fields in the order of the struct, so a
lane's frames begin with epoch, session and lane_seq. Where payloads are Blobs, an extension of code 1 stands
in their place, a list of (size, flag) for each part; the parts follow in the same order, each as one further
frame or several. On a socketpair a file descriptor for each Blob goes along instead.

What comes off a socket is never trusted: decoders raise RemoteProtocolError, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Generic, NoReturn, TypeVar, get_args

import msgspec

from taskmesh.errors import LocalProtocolError, RemoteProtocolError
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DONE, FAILURE, SUCCESS, DoneRun, LaneRun, Run, Value
from taskmesh.messages.slot_messages import FromSlot, SlotSegment, SlotTasks
from taskmesh.shm.blob import BYTES, Blob, discard, layout_of
from taskmesh.shm.files import Buffer

Message = m.ClientMessage | m.ToClient | m.PoolMessage | m.ToPool

Make = Callable[[list[int], list[int]], Blob]
"""Makes a Blob whose parts have these sizes and flags."""

_T = TypeVar("_T")

_BLOB = 1
_KINDS = {bytes, Blob}
_PACK = msgspec.msgpack.Encoder()
_LAYOUT = msgspec.msgpack.Decoder(list[tuple[int, int]])


# --- messages to bytes ------------------------------------------------------------------------------------


class _HasBlob(LocalProtocolError):
    """Internal: the message has a Blob, so one frame is not enough."""


def _found(obj: object) -> NoReturn:
    if isinstance(obj, Blob):
        raise _HasBlob
    raise LocalProtocolError(f"a {type(obj).__name__} cannot be part of a message")


_PLAIN = msgspec.msgpack.Encoder(enc_hook=_found)


def _encode(message: object) -> tuple[bytes, list[Blob]]:
    """The header, and the Blobs that follow it."""
    try:
        return _PLAIN.encode(message), []
    except _HasBlob:
        pass
    blobs: list[Blob] = []

    def placeholder(obj: object) -> msgspec.msgpack.Ext:
        if not isinstance(obj, Blob):
            _found(obj)
        blobs.append(obj)
        return msgspec.msgpack.Ext(_BLOB, _PACK.encode([(size, flag) for _, size, flag in obj.layout]))

    return msgspec.msgpack.Encoder(enc_hook=placeholder).encode(message), blobs


def encode(message: Message) -> list[Buffer]:
    """A message as frames: [header], or [header, *parts of its Blobs, in the pieces that they are in].

    Raises:
        LocalProtocolError: something in it cannot travel.
    """
    header, blobs = _encode(message)
    return [header, *(piece for blob in blobs for part in blob.pieces for piece in part)]


def encode_local(message: SlotTasks | FromSlot) -> tuple[bytes, list[Blob]]:
    """A message between supervisor and slot: its body, and the Blobs whose `to_fd()` go along, in order.

    Raises:
        LocalProtocolError: something in it cannot travel.
    """
    body, blobs = _encode(message)
    for blob in blobs:
        blob.sends += 1
    return body, blobs


# --- bytes to messages ------------------------------------------------------------------------------------


class Decoder(Generic[_T]):
    """Frames to the messages of one direction. Thread-safe."""

    def __init__(self, union: Any) -> None:
        self._union = union
        self._classes: tuple[type, ...] = get_args(union) or (union,)

    @cached_property
    def _plain(self) -> msgspec.msgpack.Decoder[Any]:
        # Made when needed: it takes milliseconds, and an embedded mesh decodes few directions.
        return msgspec.msgpack.Decoder(self._union)

    @cached_property
    def _checks(self) -> dict[type, Callable[[Any], None] | None]:
        return {cls: _checker(cls) for cls in self._classes}

    @cached_property
    def _batches(self) -> dict[type, list[str]]:
        """The names of each message's lists of what has payloads."""
        return {cls: _payloads_in(cls) for cls in self._classes}

    def decode(self, frames: Sequence[Any]) -> _T:
        """The message in these frames: bytes, or anything with a buffer, which its Blobs keep alive.

        Raises:
            RemoteProtocolError: they are not a message of this direction.
        """
        try:
            message = self._plain.decode(frames[0]) if len(frames) == 1 else self._with_parts(frames)
            check = self._checks[type(message)]
            if check is not None:
                check(message)
        except RemoteProtocolError:
            raise
        except Exception as error:
            raise RemoteProtocolError(f"a malformed message: {error}") from error
        return message  # type: ignore[no-any-return]

    def _with_parts(self, frames: Sequence[Any]) -> Any:
        rest = iter(frames[1:])

        def make(sizes: list[int], flags: list[int]) -> Blob:
            return Blob.from_pieces([_part(rest, size) for size in sizes], flags[1:])

        message = self._with_blobs(frames[0], make)
        if next(rest, None) is not None:
            raise RemoteProtocolError("more frames than the header announces")
        return message

    def decode_local(self, body: Buffer, descriptors: Iterable[int], *, relayed: bool = False) -> _T:
        """The message in a body off the socketpair; owns the descriptors that came with it from now on.

        Args:
            body, descriptors: what came.
            relayed: the receiver may send files on.

        Raises:
            RemoteProtocolError: they are not a message of this direction; the descriptors are closed.
        """
        waiting = list(reversed(list(descriptors)))

        def make(sizes: list[int], flags: list[int]) -> Blob:
            if not waiting:
                raise RemoteProtocolError("a payload without its descriptor")
            return Blob.from_fd(waiting.pop(), layout_of(sizes, flags), relayed=relayed)

        try:
            message = self._with_blobs(body, make) if waiting else self._plain.decode(body)
            if waiting:
                raise RemoteProtocolError("more descriptors than the message announces")
            check = self._checks[type(message)]
            if check is not None:
                check(message)
        except RemoteProtocolError:
            raise
        except Exception as error:
            raise RemoteProtocolError(f"a malformed message: {error}") from error
        finally:
            discard(waiting)
        return message  # type: ignore[no-any-return]

    def _with_blobs(self, header: Any, make: Make) -> Any:
        message = self._plain.decode(header)
        for name in self._batches[type(message)]:
            for batch in getattr(message, name):
                if isinstance(batch, Value):
                    batch.payload = _payload(batch.payload, make)
                    continue
                batch.payloads = [_payload(each, make) for each in batch.payloads]
                for value in batch.values if isinstance(batch, LaneRun) else ():
                    value.payload = _payload(value.payload, make)
        return message


def _part(frames: Iterator[Any], size: int) -> list[Buffer]:
    """The frames of a part of so many bytes."""
    pieces: list[Buffer] = []
    held = 0
    while not pieces or held < size:
        frame = next(frames, None)
        if frame is None:
            break
        pieces.append(frame if type(frame) is bytes else memoryview(frame))
        held += len(pieces[-1])
    if held != size or not pieces:
        raise RemoteProtocolError(f"a part of {held} bytes where {size} were announced")
    return pieces


def _payloads_in(cls: type) -> list[str]:
    lists = [(field.name, get_args(field.type) or (None,)) for field in msgspec.structs.fields(cls)]
    return [
        name
        for name, (content, *_) in lists
        if content is Value or "payloads" in getattr(content, "__struct_fields__", ())
    ]


def _payload(came: bytes | msgspec.msgpack.Ext, make: Make) -> bytes | Blob:
    """The payload that stands there, or the Blob that stands for."""
    if isinstance(came, bytes):
        return came
    if came.code != _BLOB:
        raise RemoteProtocolError(f"an extension of unknown code {came.code}")
    layout = _LAYOUT.decode(came.data)
    sizes, flags = [size for size, _ in layout], [flag for _, flag in layout]
    if not layout or min(sizes) < 0 or min(flags) < 0 or max(flags) > BYTES:
        raise RemoteProtocolError("a payload's layout makes no sense")
    return make(sizes, flags)


# --- what the types do not tell ---------------------------------------------------------------------------


def _check_payloads(batch: Run | LaneRun | DoneRun | SlotSegment) -> None:
    if not _KINDS.issuperset(map(type, batch.payloads)):
        raise RemoteProtocolError("a payload that is neither bytes nor a Blob")


def _check_run(run: Run | LaneRun | DoneRun) -> None:
    if len(run.seqs) != len(run.payloads):
        raise RemoteProtocolError(f"{len(run.seqs)} tasks with {len(run.payloads)} payloads")
    if not run.seqs:
        raise RemoteProtocolError("a run without tasks")
    _check_payloads(run)


def _check_edges(run: Run | LaneRun, edges: Sequence[object]) -> None:
    if edges and len(edges) != len(run.seqs):
        raise RemoteProtocolError(f"{len(run.seqs)} tasks with dependencies for {len(edges)}")


def _check_value(value: Value) -> None:
    if type(value.payload) not in _KINDS:
        raise RemoteProtocolError("an outcome that is neither bytes nor a Blob")


def _check_pushed(run: LaneRun) -> None:
    _check_run(run)
    _check_edges(run, run.needs)
    for value in run.values:
        _check_value(value)


def _check_submitted(run: Run) -> None:
    _check_run(run)
    if run.key and len(run.seqs) != 1:
        raise RemoteProtocolError("a run with a key that is not one task")
    if len(set(run.seqs)) != len(run.seqs):
        raise RemoteProtocolError("a task that is twice in one run")
    _check_edges(run, run.needs)
    _check_edges(run, run.after)
    if run.when not in (SUCCESS, DONE, FAILURE):
        raise RemoteProtocolError(f"a run that starts when {run.when}, which is no condition")


_RULES: dict[Any, Callable[[Any], None]] = {
    Run: _check_submitted,
    LaneRun: _check_pushed,
    Value: _check_value,
    DoneRun: _check_run,
    SlotSegment: _check_payloads,
}


def _checker(cls: type) -> Callable[[Any], None] | None:
    """Return the check of the batches of a message of this class, if it has any."""
    rules = [
        (attrgetter(field.name), _RULES[content])
        for field in msgspec.structs.fields(cls)
        if (content := (get_args(field.type) or (None,))[0]) in _RULES
    ]
    return partial(_check_each, rules) if rules else None


def _check_each(
    rules: Sequence[tuple[Callable[[Any], list[Any]], Callable[[Any], None]]], message: Any
) -> None:
    for batches, rule in rules:
        for batch in batches(message):
            rule(batch)


from_client: Decoder[m.ClientMessage] = Decoder(m.ClientMessage)
"""Client to hub, on the gateway."""

to_client: Decoder[m.ToClient] = Decoder(m.ToClient)
"""Hub to client, on the gateway."""

from_pool: Decoder[m.PoolMessage] = Decoder(m.PoolMessage)
"""Pool to hub, on the collector."""

to_pool: Decoder[m.ToPool] = Decoder(m.ToPool)
"""Hub to pool, on lanes and control."""

to_slot: Decoder[SlotTasks] = Decoder(SlotTasks)
"""Supervisor to slot."""

from_slot: Decoder[FromSlot] = Decoder(FromSlot)
"""Slot to supervisor."""
