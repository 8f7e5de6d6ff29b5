"""Pool sessions: which pools are there, whose lease runs out, and what becomes of their tasks.

A lost lane is not a dead pool, and a silent pool may come back: each step costs a pool only what it must.
"""

from __future__ import annotations

import msgspec

from taskmesh.core.actions import CloseLane, OpenLane, Publish
from taskmesh.core.credit import MOST_AHEAD
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.hub.machine import adoption, collector
from taskmesh.hub.machine.books.lanes import Lane, LaneCause, LaneState
from taskmesh.hub.machine.books.states import Cause, State, TaskRecord
from taskmesh.hub.machine.settings import REFUSE, difference
from taskmesh.hub.machine.state import NAMES_KEPT, HubState
from taskmesh.link.link import SLOWEST
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Progress

STATED = {"ready": LaneCause.WORK, "paused": LaneCause.PAUSE, "draining": LaneCause.DRAIN}
"""States that a pool's beat names, or should name."""
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


def have_work(hub: HubState, user: str) -> bool:
    """Return True if pools that show this key have any task."""
    lanes = [lane for lane in hub.lanes.values() if lane.user == user]
    return any(lane.outstanding for lane in lanes) or hub.unclaimed.are_held({lane.session for lane in lanes})


# --- joining ----------------------------------------------------------------------------------------------


def on_hello(hub: HubState, hello: m.Hello, now: float, user: str = "", token: bytes = b"") -> None:
    """A pool asks for a session: old ones of its name end, what it still holds moves over."""
    odd = difference(hub.config.versions, hello)
    current = hub.lane_of(hello.pool)
    if not _may_join(hub, hello, odd, current, now, user):
        return
    instance, number = hub.known_pools.hellos.get(hello.pool, (hello.instance, 0))
    if instance == hello.instance:
        if hello.number < number:
            return
        if hello.number == number and current is not None:
            _welcome(hub, current)
            return
    hub.known_pools.said_hello(hello)
    hub.known_pools.sessions += 1
    beat = hub.config.beat_of(len(hub.lanes) + 1)
    lane = Lane(hub.known_pools.sessions, hello, now, user, token, beat=beat)
    hub.open_lane(lane)
    if odd:
        hub.log("pool.versions", {"pool": lane.pool, "warning": odd})
        lane.warning = odd
    former, lane.first_epoch = _former_session(hub, lane, current)
    if former:
        _survived(hub, lane)
    adoption.take_inventory(hub, lane, hello, former, now)
    speaks_of_former = hello.epoch not in (0, hub.config.epoch)
    if speaks_of_former:
        hub.recovery.heard(now)
    lane.hello = msgspec.structs.replace(hello, inventory=[])  # it may be large
    if current is not None:
        died = current.hello.instance != hello.instance
        reason = "another process has its name" if died else ""
        _end(hub, current, started=died or speaks_of_former, died=reason)
    lane.wished = hub.known_pools.take_wish(hello.pool, hello.instance)
    hub.out.append(OpenLane(lane.session, lane.pool, hello.key))
    hub.log("pool.joined", {"pool": lane.pool, "session": lane.session, "slots": lane.slots})


def _former_session(hub: HubState, lane: Lane, current: Lane | None) -> tuple[int, int]:
    """Return the session that the process of a new one has had here, 0 for none, and its first epoch."""
    if current is not None and current.hello.instance == lane.hello.instance:
        return current.session, current.first_epoch
    former = hub.known_pools.former.pop((lane.pool, lane.hello.instance), None)
    if former is None or former[:2] != (lane.user, lane.token):
        return 0, lane.first_epoch
    return former[2:]


def _may_join(hub: HubState, hello: m.Hello, odd: str, current: Lane | None, now: float, user: str) -> bool:
    """Return True if a pool may have a session; otherwise answer it with the reason."""
    config = hub.config
    if hello.protocol != m.PROTOCOL:
        other = f"the hub speaks protocol {m.PROTOCOL}, the pool {hello.protocol}"
        _refuse(hub, hello, f"{other}: install the same taskmesh")
    elif odd and config.policy == REFUSE:
        _refuse(hub, hello, odd)
    elif (count := sum(len(held.seqs) for held in hello.inventory)) > most_held(hello.slots):
        _refuse(hub, hello, f"it lists {count} tasks, more than {hello.slots} slots can hold")
    elif (
        current is not None
        and current.hello.instance != hello.instance
        and (current.lost_at is None or current.user != user)
    ):
        _name_in_use(hub, current, hello, now)
    elif current is None and len(hub.lanes) >= config.max_pools:
        _note(hub, hello, f"the hub has {len(hub.lanes)} pools and may have no more (hub.max_pools)")
    else:
        return True
    return False


def _name_in_use(hub: HubState, holder: Lane, hello: m.Hello, now: float) -> None:
    """Two processes use one name: the newcomer is refused when the holder is heard long enough after it.

    Until then it waits, and says Hello again: it may have been started in place of a holder that was
    killed and whose links the hub has not seen close. What that one has said may be heard late.
    """
    if len(hub.known_pools.waiting) >= MOST_WAITING:
        hub.known_pools.waiting.clear()
    since = hub.known_pools.waiting.setdefault((holder.session, hello.instance), now)
    if holder.heard - since > hub.config.silent_beats * holder.beat:
        other = f"process {holder.hello.pid} on {holder.hello.host}" if holder.hello.pid else "a process"
        _refuse(hub, hello, f"{other} is pool {hello.pool} already: start this one with another --name")


def _refuse(hub: HubState, hello: m.Hello, reason: str) -> None:
    """Tell a pool that it is not wanted: it ends."""
    _note(hub, hello, reason)
    hub.out.append(Publish(hello.pool, m.Refused(hello.pool, hello.instance, reason)))


def _note(hub: HubState, hello: m.Hello, reason: str) -> None:
    """Keep why a pool was not let in, for those who ask. It may ask again."""
    if hub.diagnostics.refused.get(hello.pool) != reason:
        hub.log("pool.refused", {"pool": hello.pool, "reason": reason})
    if hello.pool in hub.diagnostics.refused or len(hub.diagnostics.refused) < NAMES_KEPT:
        hub.diagnostics.refused[hello.pool] = reason


def on_lane_opened(hub: HubState, session: int, endpoint: str) -> None:
    """The shell has bound the lane: the pool may dial it. Work follows its first beat.

    Without an endpoint there was none to be had; the next session of the pool may have more luck.
    """
    lane = hub.lanes.get(session)
    if lane is None:
        hub.out.append(CloseLane(session))
        return
    if not endpoint:
        _note(hub, lane.hello, NO_LANE)
        return
    hub.diagnostics.refused.pop(lane.pool, None)
    lane.endpoint = endpoint
    _welcome(hub, lane)


def _welcome(hub: HubState, lane: Lane) -> None:
    if lane.endpoint:
        config, hello = hub.config, lane.hello
        welcome = m.Welcome(
            config.epoch,
            lane.session,
            lane.pool,
            lane.hello.instance,
            hello.number,
            lane.endpoint,
            lane.beat,
            config.lease,
            lane.stale,
            config.max_payload,
        )
        hub.out.append(Publish(lane.pool, welcome))


# --- living -----------------------------------------------------------------------------------------------


def current(hub: HubState, epoch: int, session: int) -> Lane | None:
    """The lane of a session of this hub, if it is one that still lives."""
    return hub.lanes.get(session) if epoch == hub.config.epoch else None


def on_beat(hub: HubState, beat: m.Beat, now: float) -> m.Notice | None:
    """A pool lives. Returns news of what it runs, for clients."""
    lane = current(hub, beat.epoch, beat.session)
    if lane is None:
        hub.out.append(Publish(beat.pool, m.BeatReply(hub.config.epoch, 0, 0, beat.session)))
        return None
    lane.heard = now
    lane.running = beat.running
    lane.sized(beat.slots)
    if lane.endpoint and lane.state is not LaneState.CUT:
        lane.is_draining |= beat.state == "draining"
        stated = _insisted(hub, lane, beat.state) if lane.wished else beat.state
        lane.move(STATED.get("draining" if lane.is_draining else stated, LaneCause.WORK))
    if beat.received > lane.received or beat.received >= lane.sequence:
        lane.received = max(lane.received, beat.received)
        lane.received_moved = now
    patience = hub.config.silent_beats * lane.beat + lane.bytes_in_flight(beat.received) / SLOWEST
    say_hello = lane.state is LaneState.CUT or now - lane.received_moved > patience
    reply = m.BeatReply(hub.config.epoch, 0 if say_hello else lane.session, lane.reports.to, lane.session)
    hub.out.append(Publish(lane.pool, reply))
    return _running(hub, lane, beat.running, stalled=lane.is_stalled(now))


def _insisted(hub: HubState, lane: Lane, state: str) -> str:
    """Repeat an operator's command, which may have been lost, until the pool's beats obey it.

    Returns:
        The state that counts: the one that is wanted.
    """
    if state in (lane.wished, "draining"):
        lane.wished = ""
        return state
    hub.out.append(Publish(lane.pool, m.PoolCommand(VERBS[lane.wished], lane.hello.instance)))
    return lane.wished


def _running(hub: HubState, lane: Lane, running: list[Progress], *, stalled: bool) -> m.Notice | None:
    """Take in what a pool runs. Where all that it runs takes long, the estimates were too low.

    Not elsewhere: one long task among many short ones would keep all the others from being sent ahead.
    """
    told = []
    stale = []
    for progress in running:
        task = progress.client << SEQ_BITS | progress.seq
        record = hub.ledger.by_id(task)
        if record is None or not collector.is_current(record, task, lane.session, progress.attempt):
            if record is not None or adoption.is_over(hub, progress.client, progress.seq):
                stale.append(Held(progress.client, progress.attempt, [progress.seq]))
            continue
        if record.state is State.SENT:
            hub.ledger.move(record, Cause.START)
        if stalled:
            record.spec.at_least(progress.elapsed)
        progress.attempt -= record.returns
        told += for_all(progress, record)
    if stale:
        hub.out.append(Publish(lane.pool, m.Cancel(hub.config.epoch, lane.session, stale)))
    if lane.unwanted:
        recall_unwanted(hub, lane)
    return m.Notice(told) if told else None


def last_progress(hub: HubState, lane: Lane, ended: list[Progress]) -> m.Notice | None:
    """Return news for clients of tasks whose outcomes come next."""
    told = []
    for progress in ended:
        task = progress.client << SEQ_BITS | progress.seq
        record = hub.ledger.by_id(task)
        if record is not None and collector.is_current(record, task, lane.session, progress.attempt):
            progress.attempt -= record.returns
            if progress.lines:
                hub.diagnostics.lines.add(record.id, progress, hub.owner(record.client))
            told += for_all(progress, record)
    return m.Notice(told) if told else None


def on_lane_lost(hub: HubState, session: int) -> None:
    """The lane's link closed: no more work on it; its pool will say Hello, or its lease runs out."""
    lane = hub.lanes.get(session)
    if lane is not None and lane.state is not LaneState.CUT:
        lane.move(LaneCause.LINK_LOST)
        hub.out.append(Publish(lane.pool, m.BeatReply(hub.config.epoch, 0, 0, session)))


def on_links_lost(hub: HubState, session: int, now: float) -> None:
    """Every link closed: the pool has `links_grace` to come back with its inventory."""
    lane = hub.lanes.get(session)
    if lane is not None and lane.lost_at is None:
        lane.move(LaneCause.LINK_LOST)
        lane.lost_at = now


def on_bye(hub: HubState, session: int, sent: int) -> None:
    """A pool left in good order: when all its reports are in, it has not started what it still holds."""
    lane = hub.lanes.get(session)
    if lane is not None:
        _leave(hub, lane, "left", started=lane.reports.to < sent)


# --- ending -----------------------------------------------------------------------------------------------


def extend(hub: HubState, gap: float) -> None:
    """The hub itself stood still for `gap` seconds: nobody could be heard, so nobody is late."""
    for lane in hub.lanes.values():
        lane.heard += gap
        lane.received_moved += gap
        lane.progress += gap
        if lane.lost_at is not None:
            lane.lost_at += gap
    hub.known_pools.waiting.clear()  # it proves nothing that `heard` has moved


def check_leases(hub: HubState, now: float) -> None:
    config = hub.config
    for lane in list(hub.lanes.values()):
        if lane.lost_at is not None and now - lane.lost_at >= config.links_grace:
            _leave(hub, lane, "links lost")
        elif now - lane.heard >= config.lease:
            _leave(hub, lane, "lease expired")
        elif lane.state is LaneState.READY and now - lane.heard > config.silent_beats * lane.beat:
            lane.move(LaneCause.SILENCE)


def _leave(hub: HubState, lane: Lane, reason: str, *, started: bool = True) -> None:
    if hub.known_pools.by_name.get(lane.pool) == lane.session:
        del hub.known_pools.by_name[lane.pool]
    held = _end(hub, lane, started=started, died="" if reason == "left" else reason)
    hub.log("pool.left", {"pool": lane.pool, "reason": reason, "held": held})


def _end(hub: HubState, lane: Lane, *, started: bool, died: str = "") -> int:
    """Take from a session what it holds, and what its pool may have started.

    Args:
        started: it may have started what it held. A pool that speaks of an earlier hub, and lists less
            than before, has ended or given back the rest there: its first Hello came late.
        died: why its process is thought to be dead, empty when it is not. Whoever was told to leave, or
            is leaving, was killed for that.
    """
    held = lane.held()
    hub.known_pools.keep_wish(lane)
    hub.known_pools.gave_up(lane.session, held)
    charged = bool(died) and not lane.is_draining and lane.wished != "draining"
    if charged and held:
        hub.known_pools.keep_dead(lane, held)
    for record in reversed(held):
        if charged:
            collector.died_with(hub, record, lane.pool, died)
        elif started:
            collector.lost(hub, record)
        else:
            collector.not_started(hub, record)
    hub.end_lane(lane)
    hub.known_pools.keep_former(lane)
    hub.unclaimed.session_over(lane.session)
    hub.out.append(CloseLane(lane.session))
    return len(held)


def _survived(hub: HubState, lane: Lane) -> None:
    """The process of a session that was thought to be dead is back: no task was to blame."""
    for record in hub.known_pools.died.pop((lane.pool, lane.hello.instance), ()):
        record.charge(losses=-1)


def recall_unwanted(hub: HubState, lane: Lane) -> None:
    """Has a pool hand back what it has not started; again with its beats: tasks may be on their way."""
    if lane.holds_unwanted():
        hub.out.append(Publish(lane.pool, m.Recall(hub.config.epoch, lane.session, lane.outstanding)))
