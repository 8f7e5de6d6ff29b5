"""Large messages travel as several, and are put together again where they arrive.

libzmq gathers all frames of a message, and each frame whole, before anybody can look at them: who receives
bounds that by frames that are small (docs/adr/0017). So a message of more than FRAGMENT bytes is cut into
fragments, messages of their own, which a frame with a mark begins:

    0xC1 "TM" 0x01, sender, number of the message, bytes before this fragment, in all, and of the header

Numbers have eight bytes, the last one four, the highest byte first. No msgpack begins with 0xC1, so nothing
else looks like a mark. Behind it stand frames of the message or pieces of them, in order. Only the header is
joined again: where a payload's parts end its layout tells, and whoever passes a payload on sends the pieces
as they came.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final

from taskmesh.errors import RemoteProtocolError
from taskmesh.shm.files import Buffer, keep_freed_memory

FRAGMENT: Final = 2 << 20
"""Bytes of a message that travels whole, and of a fragment beside its mark."""

STALE: Final = 120.0
"""Seconds without another fragment after which what has come of a message is dropped."""

FRAME_COST: Final = 64
"""Bytes that a frame takes beside what it holds."""

_MAGIC: Final = b"\xc1TM\x01"
_MARK: Final = struct.Struct(">4sQQQQI")


class NoRoom(RemoteProtocolError):
    """There is no room for what comes of a large message: it is dropped, and may be sent again."""

    def __init__(self, text: str, sender: int) -> None:
        super().__init__(text)
        self.sender = sender


class Cutter:
    """Cuts the messages of one sender.

    Args:
        size: bytes of a fragment.

    Attributes:
        sender: a number that no other sender to the same peer has.
    """

    def __init__(self, sender: int, size: int = FRAGMENT) -> None:
        self.sender = sender
        self._size = size
        self._number = 0

    def cut(self, frames: list[Buffer]) -> list[list[Buffer]]:
        """The messages to send in place of one: itself, if it is small. Nothing is copied."""
        size = self._size
        if len(frames[0]) <= size and (len(frames) == 1 or sum(map(len, frames)) <= size):
            return [frames]
        self._number += 1
        total, header = sum(map(len, frames)), len(frames[0])
        made: list[list[Buffer]] = []
        group: list[Buffer] = []
        offset = held = 0
        for piece in _pieces(frames, size):
            if group and held + len(piece) > size:
                made.append([self._mark(offset, total, header), *group])
                offset, group, held = offset + held, [], 0
            group.append(piece)
            held += len(piece)
        return [*made, [self._mark(offset, total, header), *group]]

    def _mark(self, offset: int, total: int, header: int) -> bytes:
        return _MARK.pack(_MAGIC, self.sender, self._number, offset, total, header)


def _pieces(frames: Sequence[Buffer], size: int) -> list[Buffer]:
    made: list[Buffer] = []
    for frame in frames:
        if len(frame) <= size:
            made.append(frame)
        else:
            view = memoryview(frame)
            made += [view[start : start + size] for start in range(0, len(view), size)]
    return made


def is_fragment(frames: Sequence[Buffer]) -> bool:
    """Return True for a part of a large message."""
    return len(frames) > 1 and len(frames[0]) == _MARK.size and frames[0][:4] == _MAGIC


class _Partial:
    """The parts of one message that have arrived."""

    __slots__ = ("at", "cost", "frames", "number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.frames: list[Buffer] = []
        self.size = 0
        self.cost = 0
        self.at = 0.0


Peer = tuple[str, bytes, int]
"""By whose key it comes, over which link, and the sender's own number."""


class Assembler:
    """Puts messages together again; a message alone may be larger than the budgets.

    Args:
        most: bytes of all messages that have not come whole, 0 for any.
        share: bytes of those that come by one key.
        largest: bytes of one message.
    """

    def __init__(self, most: int = 0, share: int = 0, largest: int = 0) -> None:
        self._most = most or 1 << 62
        self._share = share or 1 << 62
        self._largest = largest or 1 << 62
        self._partials: dict[Peer, _Partial] = {}
        self._held: Counter[str] = Counter()
        self.size = 0

    @property
    def count(self) -> int:
        """Messages that have not come whole."""
        return len(self._partials)

    def whole(
        self, frames: Sequence[Buffer], now: float, user: str = "", link: bytes = b""
    ) -> Sequence[Buffer] | None:
        """The frames of a message that is whole with these, None if there is none.

        A fragment that does not continue what has come is ignored: some before it were lost or refused.

        Args:
            frames: a message's or a fragment's. user: by whose key they came. link: where, if that is known.

        Raises:
            NoRoom: the budgets do not allow it, and what has come of its message is dropped.
            RemoteProtocolError: it makes no sense.
        """
        if len(frames) == 1 or not is_fragment(frames):  # most have one frame
            return frames
        return self._take(frames, now, user, link)

    def _take(self, frames: Sequence[Buffer], now: float, user: str, link: bytes) -> list[Buffer] | None:
        _, sender, number, offset, total, header = _MARK.unpack(frames[0])
        pieces = frames[1:]
        size = sum(map(len, pieces))
        if not 0 < header <= total or offset + size > total or not size:
            raise RemoteProtocolError("a fragment's mark makes no sense")
        peer = (user, link, sender)
        partial = self._partials.get(peer)
        if offset == 0:
            keep_freed_memory()
            self._drop(peer)
            partial = self._partials[peer] = _Partial(number)
        elif partial is None or partial.number != number or partial.size != offset:
            self._drop(peer)
            return None
        if offset + size < total:
            self._keep(peer, partial, total, size + FRAME_COST * len(pieces))
            partial.frames += pieces
            partial.size += size
            partial.at = now
            return None
        self._drop(peer)
        return _joined([*partial.frames, *pieces], header)

    def _keep(self, peer: Peer, partial: _Partial, total: int, cost: int) -> None:
        """Count so many more bytes.

        Raises:
            NoRoom: they are too many.
        """
        user = peer[0]
        alone = len(self._partials) == 1
        fits = self.size + cost <= self._most and self._held[user] + cost <= self._share
        if max(total, partial.cost + cost) > self._largest or not (fits or alone):
            held = self.size
            self._drop(peer)
            text = f"{held:,} bytes of large messages are under way, no room for one of {total:,}"
            raise NoRoom(text, peer[2])
        partial.cost += cost
        self.size += cost
        self._held[user] += cost

    def _drop(self, peer: Peer) -> None:
        partial = self._partials.pop(peer, None)
        if partial is not None:
            self.size -= partial.cost
            self._held[peer[0]] -= partial.cost
            if not self._held[peer[0]]:
                del self._held[peer[0]]

    def forget(self, link: bytes) -> None:
        """Drop what has come over a link that has ended."""
        for peer in [peer for peer in self._partials if peer[1] == link]:
            self._drop(peer)

    def drop_stale(self, now: float) -> int:
        """Drop what nothing was added to for long; return how many messages."""
        stale = [peer for peer, partial in self._partials.items() if now - partial.at > STALE]
        for peer in stale:
            self._drop(peer)
        return len(stale)


def _joined(frames: list[Buffer], size: int) -> list[Buffer]:
    """The frames with a header of so many bytes in one.

    Raises:
        RemoteProtocolError: no frame ends where the header does.
    """
    held = count = 0
    while held < size:
        held += len(frames[count])
        count += 1
    if held != size:
        raise RemoteProtocolError("a header that ends within a frame")
    header = frames[0] if count == 1 else b"".join(frames[:count])
    return [header, *frames[count:]]
