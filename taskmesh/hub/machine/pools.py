"""Pool sessions: which pools are there, whose lease runs out, and what becomes of their tasks.

A lost lane is not a dead pool, and a silent pool may come back: each step costs a pool only what it must.
"""

from __future__ import annotations

import msgspec

from taskmesh.core.actions import CloseLane, OpenLane, Publish
from taskmesh.core.credit import MOST_AHEAD
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.hub.machine.adoption import Adoption
from taskmesh.hub.machine.books.lanes import Lane, LaneCause, LaneState
from taskmesh.hub.machine.books.states import Cause, State, TaskRecord
from taskmesh.hub.machine.collector import Collector
from taskmesh.hub.machine.settings import REFUSE, difference
from taskmesh.hub.machine.state import HubState
from taskmesh.link.link import SLOWEST
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Progress

STATED = {"ready": LaneCause.WORK, "paused": LaneCause.PAUSE, "draining": LaneCause.DRAIN}
"""States that a pool's beat names, or should name."""
NAMES_KEPT = 1000
MOST_DIED = 100
"""Pools thought to be dead of which it is known what they had, should they come back after all."""
MOST_HELD = 500_000
"""Tasks in the inventory of a pool with few slots: queued, running, or finished and not acknowledged."""
MOST_SLOTS = 256
"""Slots that make that more."""
NO_LANE = (
    "the hub has no lane for it. When its log (lane.failed) says that every port is taken, "
    "start it with more: --lanes FIRST-LAST"
)
VERBS = {"ready": "resume", "paused": "pause", "draining": "drain"}
MOST_WAITING = 1000
"""Pools that wait for a name in use; with more, all of them wait anew."""
MOST_FORMER = 1000
"""Processes of which the last session is remembered: what they were given in it they may go on with."""
MOST_DESIRED = 1000
"""Pools that are waited for: most come back within minutes, or never."""


def most_held(slots: int) -> int:
    """The number of tasks that a pool may list: twice what could be outstanding there."""
    return max(MOST_HELD, 2 * MOST_AHEAD * min(slots, MOST_SLOTS))


def for_all(progress: Progress, record: TaskRecord) -> list[Progress]:
    """The same news for all clients that wait for a task."""
    if record.extra is None or not record.extra.waiters:
        return [progress]
    replace = msgspec.structs.replace
    return [
        replace(progress, client=task >> SEQ_BITS, seq=task & SEQ_MASK)
        for task in record.extra.waiting(record.id)
    ]


class DesiredStates:
    """A wish for each process that was a pool; one that takes its name meanwhile does not obey it."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], str] = {}

    def keep(self, lane: Lane) -> None:
        """A session is over. What its pool has not obeyed yet is said again should it come back."""
        if lane.wished:
            self._of[lane.pool, lane.instance] = lane.wished
            if len(self._of) > MOST_DESIRED:
                del self._of[next(iter(self._of))]

    def take(self, pool: str, instance: int) -> str:
        """A pool has a session again: what is still wanted of it, or empty."""
        return self._of.pop((pool, instance), "")


class PoolSessions:
    """Sessions of pools, and their leases.

    Attributes:
        refused: why pools were not let in, by name.
    """

    def __init__(self, hub: HubState, collector: Collector, adoption: Adoption) -> None:
        self.refused: dict[str, str] = {}
        self._hub = hub
        self._config = hub.config
        self._ledger = hub.ledger
        self._collector = collector
        self._adoption = adoption
        self._by_pool: dict[str, int] = {}
        self._hellos: dict[str, tuple[int, int]] = {}
        self._waiting: dict[tuple[int, int], float] = {}
        self._desired = DesiredStates()
        self._sessions = 0
        self._died: dict[tuple[str, int], list[TaskRecord]] = {}
        self._former: dict[tuple[str, int], tuple[str, bytes, int, int]] = {}

    def have_work(self, user: str) -> bool:
        """Return True if pools that show this key have any task."""
        lanes = [lane for lane in self._hub.lanes.values() if lane.user == user]
        return any(lane.outstanding for lane in lanes) or self._hub.unclaimed.are_held(
            {lane.session for lane in lanes}
        )

    # --- joining ------------------------------------------------------------------------------------------

    def on_hello(self, hello: m.Hello, now: float, user: str = "", token: bytes = b"") -> None:
        """A pool asks for a session: old ones of its name end, what it still holds moves over."""
        odd = difference(self._config.versions, hello)
        current = self.lane_of(hello.pool)
        if not self._may_join(hello, odd, current, now, user):
            return
        instance, number = self._hellos.get(hello.pool, (hello.instance, 0))
        if instance == hello.instance:
            if hello.number < number:
                return
            if hello.number == number and current is not None:
                self._welcome(current)
                return
        self._hellos[hello.pool] = (hello.instance, hello.number)
        if len(self._hellos) > NAMES_KEPT:
            self._hellos = {pool: at for pool, at in self._hellos.items() if pool in self._by_pool}
        self._sessions += 1
        beat = self._config.beat_of(len(self._hub.lanes) + 1)
        lane = Lane(self._sessions, hello, now, user, token, beat=beat)
        self._hub.open_lane(lane)
        self._by_pool[hello.pool] = lane.session
        if odd and lane.warning != odd:
            self._hub.log("pool.versions", {"pool": lane.pool, "warning": odd})
        lane.warning = odd
        former, lane.first_epoch = self._former_session(lane, current)
        if former:
            self._survived(lane)
        self._adoption.take_inventory(lane, hello, former, now)
        speaks_of_former = hello.epoch not in (0, self._config.epoch)
        if speaks_of_former:
            self._hub.recovery.heard(now)
        lane.hello = msgspec.structs.replace(hello, inventory=[])  # it may be large
        if current is not None:
            died = current.instance != hello.instance
            reason = "another process has its name" if died else ""
            self._end(current, started=died or speaks_of_former, died=reason)
        lane.wished = self._desired.take(hello.pool, hello.instance)
        self._hub.out.append(OpenLane(lane.session, lane.pool, hello.key))
        self._hub.log("pool.joined", {"pool": lane.pool, "session": lane.session, "slots": lane.slots})

    def _former_session(self, lane: Lane, current: Lane | None) -> tuple[int, int]:
        """Return the session that the process of a new one has had here, 0 for none, and its first epoch."""
        if current is not None and current.instance == lane.instance:
            return current.session, current.first_epoch
        former = self._former.pop((lane.pool, lane.instance), None)
        if former is None or former[:2] != (lane.user, lane.token):
            return 0, lane.first_epoch
        return former[2:]

    def _may_join(self, hello: m.Hello, odd: str, current: Lane | None, now: float, user: str) -> bool:
        """Return True if a pool may have a session; otherwise answer it with the reason."""
        config = self._config
        if hello.protocol != m.PROTOCOL:
            other = f"the hub speaks protocol {m.PROTOCOL}, the pool {hello.protocol}"
            self._refuse(hello, f"{other}: install the same taskmesh")
        elif odd and config.policy == REFUSE:
            self._refuse(hello, odd)
        elif (count := sum(len(held.seqs) for held in hello.inventory)) > most_held(hello.slots):
            self._refuse(hello, f"it lists {count} tasks, more than {hello.slots} slots can hold")
        elif (
            current is not None
            and current.instance != hello.instance
            and (current.lost_at is None or current.user != user)
        ):
            self._name_in_use(current, hello, now)
        elif current is None and len(self._hub.lanes) >= config.max_pools:
            self._note(
                hello, f"the hub has {len(self._hub.lanes)} pools and may have no more (hub.max_pools)"
            )
        else:
            return True
        return False

    def _name_in_use(self, holder: Lane, hello: m.Hello, now: float) -> None:
        """Two processes use one name: the newcomer is refused when the holder is heard long enough after it.

        Until then it waits, and says Hello again: it may have been started in place of a holder that was
        killed and whose links the hub has not seen close. What that one has said may be heard late.
        """
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.clear()
        since = self._waiting.setdefault((holder.session, hello.instance), now)
        if holder.heard - since > self._config.silent_beats * holder.beat:
            other = f"process {holder.hello.pid} on {holder.hello.host}" if holder.hello.pid else "a process"
            self._refuse(hello, f"{other} is pool {hello.pool} already: start this one with another --name")

    def _refuse(self, hello: m.Hello, reason: str) -> None:
        """Tell a pool that it is not wanted: it ends."""
        self._note(hello, reason)
        self._hub.out.append(Publish(hello.pool, m.Refused(hello.pool, hello.instance, reason)))

    def _note(self, hello: m.Hello, reason: str) -> None:
        """Keep why a pool was not let in, for those who ask. It may ask again."""
        if self.refused.get(hello.pool) != reason:
            self._hub.log("pool.refused", {"pool": hello.pool, "reason": reason})
        if hello.pool in self.refused or len(self.refused) < NAMES_KEPT:
            self.refused[hello.pool] = reason

    def on_lane_opened(self, session: int, endpoint: str) -> None:
        """The shell has bound the lane: the pool may dial it. Work follows its first beat.

        Without an endpoint there was none to be had; the next session of the pool may have more luck.
        """
        lane = self._hub.lanes.get(session)
        if lane is None:
            self._hub.out.append(CloseLane(session))
            return
        if not endpoint:
            self._note(lane.hello, NO_LANE)
            return
        self.refused.pop(lane.pool, None)
        lane.endpoint = endpoint
        self._welcome(lane)

    def _welcome(self, lane: Lane) -> None:
        if lane.endpoint:
            config, hello = self._config, lane.hello
            welcome = m.Welcome(
                config.epoch,
                lane.session,
                lane.pool,
                lane.instance,
                hello.number,
                lane.endpoint,
                lane.beat,
                config.lease,
                lane.stale,
                config.max_payload,
            )
            self._hub.out.append(Publish(lane.pool, welcome))

    # --- living -------------------------------------------------------------------------------------------

    def lane_of(self, pool: str) -> Lane | None:
        return self._hub.lanes.get(self._by_pool.get(pool, 0))

    def current(self, epoch: int, session: int) -> Lane | None:
        """The lane of a session of this hub, if it is one that still lives."""
        return self._hub.lanes.get(session) if epoch == self._config.epoch else None

    def on_beat(self, beat: m.Beat, now: float) -> m.Notice | None:
        """A pool lives. Returns news of what it runs, for clients."""
        lane = self.current(beat.epoch, beat.session)
        if lane is None:
            self._hub.out.append(Publish(beat.pool, m.BeatReply(self._config.epoch, 0, 0, beat.session)))
            return None
        lane.heard = now
        lane.busy_slots = beat.busy_slots
        lane.sized(beat.slots)
        if lane.endpoint and lane.state is not LaneState.CUT:
            lane.is_draining |= beat.state == "draining"
            stated = self._insisted(lane, beat.state) if lane.wished else beat.state
            lane.move(STATED.get("draining" if lane.is_draining else stated, LaneCause.WORK))
        if beat.received > lane.received or beat.received >= lane.sequence:
            lane.received = max(lane.received, beat.received)
            lane.received_moved = now
        patience = self._config.silent_beats * lane.beat + lane.bytes_in_flight(beat.received) / SLOWEST
        say_hello = lane.state is LaneState.CUT or now - lane.received_moved > patience
        reply = m.BeatReply(
            self._config.epoch, 0 if say_hello else lane.session, lane.reports.to, lane.session
        )
        self._hub.out.append(Publish(lane.pool, reply))
        return self._running(lane, beat.running, stalled=lane.is_stalled(now))

    def _insisted(self, lane: Lane, state: str) -> str:
        """Repeat an operator's command, which may have been lost, until the pool's beats obey it.

        Returns:
            The state that counts: the one that is wanted.
        """
        if state in (lane.wished, "draining"):
            lane.wished = ""
            return state
        self._hub.out.append(Publish(lane.pool, m.PoolCommand(VERBS[lane.wished], lane.instance)))
        return lane.wished

    def _running(self, lane: Lane, running: list[Progress], *, stalled: bool) -> m.Notice | None:
        """Take in what a pool runs. Where all that it runs takes long, the estimates were too low.

        Not elsewhere: one long task among many short ones would keep all the others from being sent ahead.
        """
        told = []
        stale = []
        for progress in running:
            task = progress.client << SEQ_BITS | progress.seq
            record = self._ledger.tasks.get(task)
            if record is None or not Collector.is_current(record, task, lane.session, progress.attempt):
                if record is not None or self._adoption.is_over(progress.client, progress.seq):
                    stale.append(Held(progress.client, progress.attempt, [progress.seq]))
                continue
            if record.state is State.SENT:
                self._ledger.move(record, Cause.START)
            if stalled:
                record.spec.at_least(progress.elapsed)
            progress.attempt -= record.returns
            told += for_all(progress, record)
        if stale:
            self._hub.out.append(Publish(lane.pool, m.Cancel(self._config.epoch, lane.session, stale)))
        if lane.unwanted:
            self.recall_unwanted(lane)
        return m.Notice(told) if told else None

    def last_progress(self, lane: Lane, ended: list[Progress]) -> m.Notice | None:
        """Return news for clients of tasks whose outcomes come next."""
        told = []
        for progress in ended:
            task = progress.client << SEQ_BITS | progress.seq
            record = self._ledger.tasks.get(task)
            if record is not None and Collector.is_current(record, task, lane.session, progress.attempt):
                progress.attempt -= record.returns
                told += for_all(progress, record)
        return m.Notice(told) if told else None

    def on_lane_lost(self, session: int) -> None:
        """The lane's link closed: no more work on it; its pool will say Hello, or its lease runs out."""
        lane = self._hub.lanes.get(session)
        if lane is not None and lane.state is not LaneState.CUT:
            lane.move(LaneCause.LINK_LOST)
            self._hub.out.append(Publish(lane.pool, m.BeatReply(self._config.epoch, 0, 0, session)))

    def on_links_lost(self, session: int, now: float) -> None:
        """Every link closed: the pool has `links_grace` to come back with its inventory."""
        lane = self._hub.lanes.get(session)
        if lane is not None and lane.lost_at is None:
            lane.move(LaneCause.LINK_LOST)
            lane.lost_at = now

    def on_bye(self, session: int, sent: int) -> None:
        """A pool left in good order: when all its reports are in, it has not started what it still holds."""
        lane = self._hub.lanes.get(session)
        if lane is not None:
            self._leave(lane, "left", started=lane.reports.to < sent)

    # --- ending -------------------------------------------------------------------------------------------

    def extend(self, gap: float) -> None:
        """The hub itself stood still for `gap` seconds: nobody could be heard, so nobody is late."""
        for lane in self._hub.lanes.values():
            lane.heard += gap
            lane.received_moved += gap
            lane.progress += gap
            if lane.lost_at is not None:
                lane.lost_at += gap
        self._waiting.clear()  # it proves nothing that `heard` has moved

    def check_leases(self, now: float) -> None:
        config = self._config
        for lane in list(self._hub.lanes.values()):
            if lane.lost_at is not None and now - lane.lost_at >= config.links_grace:
                self._leave(lane, "links lost")
            elif now - lane.heard >= config.lease:
                self._leave(lane, "lease expired")
            elif lane.state is LaneState.READY and now - lane.heard > config.silent_beats * lane.beat:
                lane.move(LaneCause.SILENCE)

    def _leave(self, lane: Lane, reason: str, *, started: bool = True) -> None:
        if self._by_pool.get(lane.pool) == lane.session:
            del self._by_pool[lane.pool]
        held = self._end(lane, started=started, died="" if reason == "left" else reason)
        self._hub.log("pool.left", {"pool": lane.pool, "reason": reason, "held": held})

    def _end(self, lane: Lane, *, started: bool, died: str = "") -> int:
        """Take from a session what it holds, and what its pool may have started.

        Args:
            started: it may have started what it held. A pool that speaks of an earlier hub, and lists less
                than before, has ended or given back the rest there: its first Hello came late.
            died: why its process is thought to be dead, empty when it is not. Whoever was told to leave, or
                is leaving, was killed for that.
        """
        held = lane.held()
        self._desired.keep(lane)
        self._collector.gave_up(lane.session, held)
        charged = bool(died) and not lane.is_draining and lane.wished != "draining"
        if charged and held:
            self._died[lane.pool, lane.instance] = held
            if len(self._died) > MOST_DIED:
                del self._died[next(iter(self._died))]
        for record in reversed(held):
            if charged:
                self._collector.died_with(record, lane.pool, died)
            elif started:
                self._collector.lost(record)
            else:
                self._collector.not_started(record)
        self._hub.end_lane(lane)
        former = lane.user, lane.token, lane.session, lane.first_epoch
        self._former[lane.pool, lane.instance] = former
        if len(self._former) > MOST_FORMER:
            del self._former[next(iter(self._former))]
        self._hub.unclaimed.session_over(lane.session)
        self._hub.out.append(CloseLane(lane.session))
        return len(held)

    def _survived(self, lane: Lane) -> None:
        """The process of a session that was thought to be dead is back: no task was to blame."""
        for record in self._died.pop((lane.pool, lane.instance), ()):
            self._ledger.charge(record, losses=-1)

    def recall_unwanted(self, lane: Lane) -> None:
        """Has a pool hand back what it has not started; again with its beats: tasks may be on their way."""
        if lane.holds_unwanted():
            self._hub.out.append(
                Publish(lane.pool, m.Recall(self._config.epoch, lane.session, lane.outstanding))
            )
