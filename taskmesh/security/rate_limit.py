"""Rate limits of each key, in messages and bytes a second, enforced before a message is decoded.

Messages above them are dropped; clients and pools with a session are told to wait and repeat them (ADR 0014).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from taskmesh.core.events import OverRate
from taskmesh.framing.fragments import is_fragment
from taskmesh.security.peer_errors import PeerErrors
from taskmesh.sockets import Part

BURST = 1.0
"""Seconds whose quota may be used at once."""
ROOM = 0.5
"""Seconds whose quota is free when peers that were told to wait come again."""
SMALL = 4096
"""Bytes of a whole message that is never dropped for its size: beats pass where large messages do not."""
REFILL = 0.005
"""Seconds between two refills of one key's quota."""
TELL = 0.1
"""Seconds for which drops are collected before they are reported."""
NO_ROOM = "room for large messages, a quarter of hub.max_bytes"
LATER = 1.0
"""Seconds to wait where a large message was dropped for lack of room."""
MANY = 1000
"""Keys with an account; beyond that the silent ones are forgotten."""

ANY = 1e18
"""A limit that nobody reaches."""

Arrived = tuple[str, list[Part]]


class RateAccount:
    """The messages and bytes that one key may still send; negative when overdrawn."""

    __slots__ = ("at", "messages", "size")

    def __init__(self, messages: float, size: float, now: float) -> None:
        self.messages = messages
        self.size = size
        self.at = now


class RateLimits:
    """The rate limits of each key of a hub, and the messages that were dropped by them.

    Args:
        messages: messages a second; 0 for any number.
        size: bytes a second; 0 for any number.
        clock: returns monotonic seconds.

    Attributes:
        continues: returns True for a fragment of a message that was begun within the limits. It is let in
            then, and counted: a message may be larger than the quota of a moment.
        tell_at: the time at which drops are to be reported.
    """

    def __init__(self, messages: int, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.continues: Callable[[str, list[Part]], bool] = lambda user, parts: False
        self._messages = float(messages) or ANY
        self._size = float(size) or ANY
        self._texts = f"hub.key_messages_per_s = {messages}", f"hub.key_bytes_per_s = {size}"
        self._clock = clock
        self._accounts: dict[str, RateAccount] = {}
        self._over: dict[str, OverRate] = {}
        self.tell_at = math.inf

    def of_clients(self, arrived: Sequence[Arrived], clients: Mapping[bytes, int]) -> Iterator[Arrived]:
        """Return the messages to the gateway that are within the limits; `clients`: sessions by link."""
        return self._within(arrived, lambda over, _, parts: over.clients.add(clients.get(bytes(parts[0]), 0)))

    def of_pools(
        self, arrived: Sequence[Arrived], session_of: Callable[[str, list[Part]], int]
    ) -> Iterator[Arrived]:
        """Return the messages to the collector that are within the limits."""
        return self._within(arrived, lambda over, user, parts: over.sessions.add(session_of(user, parts)))

    def _within(
        self, arrived: Sequence[Arrived], note: Callable[[OverRate, str, list[Part]], None]
    ) -> Iterator[Arrived]:
        """Return the messages that are within the limits; `note` takes the sender of any other."""
        now = self._clock()
        for user, parts in arrived:
            if self._admits(user, parts, now):
                yield user, parts
            elif self.continues(user, parts):
                account = self._accounts[user]
                account.messages -= 1.0
                account.size -= sum(map(len, parts))
                yield user, parts
            else:
                note(self._drop(user, now), user, parts)

    def charge(self, users: Iterator[str]) -> None:
        """Count messages that libzmq itself has acted upon: subscriptions are not dropped."""
        now = self._clock()
        for user in users:
            self._admits(user, (), now)

    def no_room(self, user: str, client: int = 0, session: int = 0) -> None:
        """Note that a large message was dropped for lack of room, though it was within its key's limits."""
        now, user = self._clock(), user or "everybody"
        self._refilled(user, now)
        over = self._drop(user, now)
        over.wait, over.cap = LATER, NO_ROOM
        over.clients.add(client)
        over.sessions.add(session)

    def reported(self, now: float, peer_errors: PeerErrors) -> list[OverRate]:
        """Return the drops since the last time, by key, with the time to wait from now on."""
        if now < self.tell_at:
            return []
        over, self._over, self.tell_at = list(self._over.values()), {}, math.inf
        for each in over:
            each.clients.discard(0)  # a peer without a session hears nothing
            each.sessions.discard(0)
            account = self._refilled(each.user, now)
            short = min(account.messages / self._messages, account.size / self._size)
            each.wait = max(each.wait, ROOM - short)
            peer_errors.add("rate.exceeded", {"from": each.user, "cap": each.cap}, each.dropped)
        return over

    def _admits(self, user: str, parts: Sequence[Part], now: float) -> bool:
        account = self._accounts.get(user)
        if account is None or now - account.at > REFILL:
            account = self._refilled(user, now)
        size = sum(map(len, parts))
        if account.messages <= 0.0 or (account.size <= 0.0 and (size > SMALL or is_fragment(parts[1:]))):
            return False
        account.messages -= 1.0
        account.size -= size
        return True

    def _refilled(self, user: str, now: float) -> RateAccount:
        account = self._accounts.get(user)
        if account is None:
            if len(self._accounts) >= MANY:
                self._accounts = {
                    name: kept for name, kept in self._accounts.items() if now - kept.at < BURST
                }
            account = self._accounts[user] = RateAccount(BURST * self._messages, BURST * self._size, now)
            return account
        passed, account.at = now - account.at, now
        account.messages = min(BURST * self._messages, account.messages + passed * self._messages)
        account.size = min(BURST * self._size, account.size + passed * self._size)
        return account

    def _drop(self, user: str, now: float) -> OverRate:
        """Count a message that is above its key's limits."""
        over = self._over.get(user)
        if over is None:
            text = self._texts[self._accounts[user].messages > 0.0]
            over = self._over[user] = OverRate(user, 0, text, 0.0, set(), set())
            self.tell_at = min(self.tell_at, now + TELL)
        over.dropped += 1
        return over
