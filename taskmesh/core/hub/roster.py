"""Rosters: the pools of this hub, sent to each of them, so that the next hub knows which pools to wait for.

A new hub has no memory, but its pools have: each brings the newest roster that it got. When all pools on it
are back with their tasks, the tasks that clients submit again and no pool lists can be sent at once.
A roster is a count and a sum, not a list of names: it has the same 30 bytes for two pools and for a thousand.
"""

from __future__ import annotations

from collections import Counter, deque
from hashlib import blake2b

from taskmesh.core.hub.backlog import group_of
from taskmesh.core.hub.ledger import Ledger
from taskmesh.core.hub.states import SUSPECT, Cause, State, TaskRecord
from taskmesh.wire import messages as m

PORTION = 2_000
"""Tasks that are queued at once when the wait is over: some 5 ms, then others have their turn."""
DIGEST_BITS = 64


class PoolRoster:
    """The pools that this hub has, but for the one in its own process, which ends with it.

    Args:
        local: name of the pool in the hub's own process, or empty.

    Attributes:
        changed: the pools are to be told, those who have just come too.
    """

    def __init__(self, epoch: int, local: str) -> None:
        self.changed = False
        self._settled = False
        self._epoch = epoch
        self._local = local
        self._version = self._sum = 0
        self._members: set[int] = set()

    def add(self, pool: str, instance: int) -> None:
        """A pool has a session, perhaps not its first: it may be given work, or has some already."""
        self.changed = True
        member = digest(pool, instance)
        if pool != self._local and member not in self._members:
            self._members.add(member)
            self._sum += member
            self._version += 1

    def remove(self, pool: str, instance: int) -> None:
        """A process has no session any more: what it held has been taken from it."""
        member = digest(pool, instance)
        if member in self._members:
            self.changed = True
            self._members.remove(member)
            self._sum -= member
            self._version += 1

    def settle(self) -> None:
        """This hub waits for nobody of the hub before it any more: its own roster is all that counts."""
        if not self._settled:
            self._settled = self.changed = True
            self._version += 1

    def message(self) -> m.Roster:
        """Returns the message for the pools."""
        self.changed = False
        total = self._sum % (1 << DIGEST_BITS)
        return m.Roster(self._epoch, self._version, len(self._members), total, self._settled)


class Recovery:
    """The wait after a restart: tasks of the earlier hub are not sent until its pools have listed their work.

    It is over when everybody on the newest roster that they bring has said Hello, and after a lease at the
    latest: a pool that has died together with the hub does not come, and a hub that nobody has brought a
    roster cannot know who is missing. A hub that was killed while it waited itself may have missed some of
    those before: then the newest roster of a hub that had not counts as well.

    Args:
        until: when it is over at the latest.

    Attributes:
        waiting: tasks that wait for it.
    """

    def __init__(self, ledger: Ledger, epoch: int, until: float) -> None:
        self._ledger = ledger
        self._epoch = epoch
        self._until = until
        self._complete = False
        self._newest: dict[bool, m.Roster] = {}
        self._heard: set[int] = set()
        self._counts: Counter[int] = Counter()
        self._sums: Counter[int] = Counter()
        self.waiting: deque[TaskRecord] = deque()

    def is_over(self, now: float) -> bool:
        """Return True if a task that no pool has listed may be sent."""
        return self._complete or now >= self._until

    def extend(self, gap: float) -> None:
        """The hub itself stood still: nobody could come back."""
        self._until += gap

    def heard(self, hello: m.Hello, now: float) -> None:
        """A pool has taken up the session that its Hello asked for, and its inventory has been taken in."""
        if self.is_over(now) or (member := digest(hello.pool, hello.instance)) in self._heard:
            return
        self._heard.add(member)
        rosters = [told for told in hello.rosters if told.epoch != self._epoch]
        for told in rosters:
            known = self._newest.get(told.settled)
            if known is None or (told.epoch, told.version) > (known.epoch, known.version):
                self._newest[told.settled] = told
        for epoch in {hello.epoch, *(told.epoch for told in rosters)} - {0, self._epoch}:
            self._counts[epoch] += 1
            self._sums[epoch] += member
        settled, later = self._newest.get(True), self._newest.get(False)
        if settled is not None and later is not None and later.epoch <= settled.epoch:
            later = None
        found = [told for told in (settled, later) if told is not None]
        self._complete = bool(found) and all(map(self._is_back, found))

    def _is_back(self, told: m.Roster) -> bool:
        """Return True if every pool of the roster has been heard."""
        total = self._sums[told.epoch] % (1 << DIGEST_BITS)
        return (told.count, told.digest) == (self._counts[told.epoch], total)

    # --- tasks --------------------------------------------------------------------------------------------

    def wait(self, record: TaskRecord) -> None:
        """A new record, submitted to an earlier hub, that no pool has listed so far."""
        if record.state is not State.WAITING:  # for others as well
            self._ledger.move(record, Cause.RECOVER)
        self.waiting.append(record)
        if (links := record.links) is not None:
            links.recovers = True

    def left(self, now: float) -> float:
        """Seconds for which it may still go on."""
        return max(0.0, self._until - now)

    def deadline(self, now: float) -> float:
        """Return the time at which `release` has something to do; call it while tasks wait."""
        return now if self._complete else self._until

    def release(self, now: float) -> None:
        """Once the wait is over, queue a portion of the tasks that no pool has listed."""
        waiting, ledger = self.waiting, self._ledger
        if not self.is_over(now):
            return
        batch: list[TaskRecord] = []
        for _ in range(min(PORTION, len(waiting))):
            record = waiting.popleft()
            if record.state is not State.WAITING or record.due:
                continue  # a pool had it, or it has ended
            if (links := record.links) is not None:
                links.recovers = False
                if record.is_held_back(now):
                    continue
            ledger.move(record, Cause.DUE)
            if record.losses >= SUSPECT:
                ledger.requeue(record)
                continue
            if batch and not _akin(batch[-1], record):
                ledger.enqueue(batch, again=True)
                batch = []
            batch.append(record)
        ledger.enqueue(batch, again=True)


def _akin(record: TaskRecord, other: TaskRecord) -> bool:
    """Return True if two tasks stand in one line of the queue."""
    return record.spec is other.spec and record.part == other.part and group_of(record) == group_of(other)


def digest(pool: str, instance: int) -> int:
    """A number for a pool's process, the same in every hub."""
    found = blake2b(f"{instance} {pool}".encode(), digest_size=DIGEST_BITS // 8).digest()
    return int.from_bytes(found, "big")
