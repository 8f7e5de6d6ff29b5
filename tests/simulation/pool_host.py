"""The simulated pool: one supervisor with its slots and its links to the hub."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import msgspec

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.slot_messages import SlotTasks
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.sockets import limit_results
from tests.simulation.audit import Violation
from tests.simulation.host import Host
from tests.simulation.hub_host import HubHost, LaneEnd
from tests.simulation.network import Link, unpacked
from tests.simulation.setting import Setting
from tests.simulation.slot_process import SlotProcess

_TO_POOL = msgspec.msgpack.Decoder(m.ToPool).decode
START = 0.01
"""Seconds that a slot's fork takes."""
AGAIN = 0.3
"""Seconds after which a pool that its own task has killed is started again."""
SWEEP = 0.3
"""Seconds between a hub's looks at who has lost all links."""


class HubEnd:
    """A pool's end of its links to its hub.

    Attributes:
        collector, beat: links to the hub. control: the link from it. blocked_in: of lanes that are dialled.
        limit: bytes of one result that the hub takes.
    """

    def __init__(self, pool: PoolHost, hub: HubHost) -> None:
        self.hub = hub
        self.collector = Link("collector", partial(hub.from_pool, pool.name))
        self.beat = Link("beat", partial(hub.from_pool, pool.name))
        self.control = Link("control", pool.from_hub)
        self.blocked_in = ""
        self.lane: LaneEnd | None = None
        self.limit = 0
        self._pool = pool
        self._dials = 0

    def _from_lane(self, lane: LaneEnd, data: object) -> None:
        if self._pool.up and self.lane is lane:
            self._pool.tell(ev.FromHub(unpacked(data, _TO_POOL)))

    def dial(self, endpoint: str) -> None:
        """Connects to a lane in place of the one before."""
        self.hang_up(signalled=False)
        self._dials += 1
        self._pool.setting.timetable.after(0.0005, self._dialled, endpoint, self._dials)

    def _dialled(self, endpoint: str, dial: int) -> None:
        if not self._pool.up or dial != self._dials:
            return
        lane = self.hub.lanes.get(endpoint) if self.hub.up else None
        if lane is None or lane.link is not None:
            self._lane_lost(dial)
            return
        link = Link("lane", lambda data: self._from_lane(lane, data))
        link.blocked = self.blocked_in
        self.lane = lane
        self.hub.connected(lane, link)

    def _lane_lost(self, dial: int) -> None:
        if self._pool.up and dial == self._dials:
            self.lane = None
            self._pool.tell(ev.HubLaneLost())

    def hang_up(self, *, signalled: bool) -> None:
        """This end closes the lane."""
        lane, self.lane = self.lane, None
        self._dials += 1
        if lane is None or lane.link is None:
            return
        lane.dead = True
        lane.link.reset()
        if signalled:
            self._pool.setting.timetable.after(0.001, self._tell_hub, lane, self.hub.epoch)

    def _tell_hub(self, lane: LaneEnd, epoch: int) -> None:
        if self.hub.up and self.hub.epoch == epoch:
            self.hub.tell(ev.LaneLost(lane.session))

    def lane_closed(self, lane: LaneEnd, *, signalled: bool) -> None:
        """The hub's end of a lane is gone, or the lane's connection was reset."""
        lane.dead = True
        if lane.link is not None:
            lane.link.reset()
        if self.lane is lane and signalled:
            self._pool.setting.timetable.after(0.001, self._lane_lost, self._dials)

    def reset_lane(self) -> None:
        """A reset of the lane's connection alone; either end may or may not be told."""
        lane, setting = self.lane, self._pool.setting
        if lane is not None:
            if setting.chance.random() < 0.5:
                setting.timetable.after(0.001, self._tell_hub, lane, self.hub.epoch)
            self.lane_closed(lane, signalled=setting.chance.random() < 0.5)

    def reset_links(self) -> None:
        """A reset of every connection to the hub; all but the lane's are made again.

        The hub may learn of it when it has welcomed the pool anew.
        """
        hub, setting = self.hub, self._pool.setting
        chance = setting.chance
        lost = hub.machine.state.lane_of(self._pool.name) if hub.up and chance.random() < 0.5 else None
        if lost is not None:
            setting.timetable.after(SWEEP * chance.random(), self._tell_lost, lost.session, hub.epoch)
        self.reset_lane()
        for link in (self.collector, self.beat, self.control):
            link.reset()

    def _tell_lost(self, session: int, epoch: int) -> None:
        if self.hub.up and self.hub.epoch == epoch:
            self.hub.tell(ev.LinksLost(session))

    def links_in(self) -> list[Link]:
        """Links from the hub."""
        lane = self.lane
        return [self.control, lane.link] if lane is not None and lane.link is not None else [self.control]

    def links_out(self) -> list[Link]:
        """Links to the hub."""
        return [self.collector, self.beat]


class PoolHost(Host[PoolMachine]):
    """One pool and its successors under the same name.

    Attributes:
        end: of the links to the hub. fork_failures: of the next forks.
        left: why the machine has left, None while it has not.
        is_twin: it asks for another one's name.
        retired: it is never started again, not even by who had set out to do so before.
    """

    gathers = True

    def __init__(self, setting: Setting, hub: HubHost, config: PoolSettings) -> None:
        super().__init__(config.pool, setting)
        self.end = HubEnd(self, hub)
        self.slots: dict[int, SlotProcess] = {}
        self.fork_failures = 0
        self.left: str | None = None
        self.is_twin = False
        self.retired = False
        self._hub = hub
        self._config = config

    @property
    def instance(self) -> int:
        """Of the present or the next life."""
        return self._config.instance

    def twin(self, number: int) -> PoolHost:
        """Another process with the same name and settings."""
        twin = PoolHost(self.setting, self._hub, replace(self._config, instance=500_000 * number))
        twin.is_twin = True
        return twin

    def start(self) -> None:
        """Starts a supervisor; its slots follow."""
        if self.retired:
            return
        self.offset = 1000.0 * self.setting.chance.randrange(1, 50)
        self.left = None
        self.boot(PoolMachine(self._config, self.clock()))

    def kill(self) -> None:
        """Kill -9: the slots go too; what the kernel has taken may still arrive."""
        for slot in self.slots.values():
            slot.vanish()
        self.slots.clear()
        super().kill()
        end = self.end
        end.hang_up(signalled=self.setting.chance.random() < 0.5)
        for link in (end.collector, end.beat, end.control):
            if self.setting.chance.random() < 0.5:
                link.reset()
        self._config = replace(self._config, instance=self._config.instance + 1000)

    def fall(self) -> None:
        """The kernel kills it for what one of its tasks does; it is started again."""
        self.setting.audit.faults["own task", "pool"] += 1
        self.kill()
        self.setting.timetable.after(AGAIN, self._start_again)

    def _start_again(self) -> None:
        if not self.up:
            self.start()

    # --- links --------------------------------------------------------------------------------------------

    def from_hub(self, data: object) -> None:
        """A message on a control link."""
        if not self.up:
            return
        self.tell(ev.FromHub(unpacked(data, _TO_POOL)))

    def _take(self, event: object) -> None:
        before = self.machine.state
        super()._take(event)
        is_command = isinstance(event, ev.FromHub) and isinstance(event.message, m.PoolCommand)
        if is_command and self.machine.state != before:
            self.setting.audit.obeyed(self.name, self.instance, self.machine.state)

    # --- actions ------------------------------------------------------------------------------------------

    def _says(self, message: m.PoolMessage, limit: int) -> None:
        """It says this to the hub, which takes results of so many bytes at most, 0 for any number."""
        if isinstance(message, m.Results):
            if limit:
                limit_results(message, limit)
            self.setting.audit.blamed(message.failed)
        elif isinstance(message, m.Hello):
            self.setting.audit.attempts.introduced(f"{self.name}:{self.instance}", message)

    def perform(self, actions: list[object]) -> None:
        """Does what the machine wants done, in order."""
        send = self.setting.network.send
        for action in actions:
            match action:
                case act.SendHub(message=message):
                    self._says(message, self.end.limit)
                    send(self.end.collector, message)
                case act.SendBeat(message=beat):
                    send(self.end.beat, beat)
                case act.DialLane(endpoint=endpoint, max_payload=limit):
                    self.end.limit = limit
                    self.end.dial(endpoint)
                case act.HangUp():
                    self.end.hang_up(signalled=self.setting.chance.random() < 0.7)
                case act.StartSlot(slot=slot):
                    self.setting.timetable.after(START, self._fork, slot, self._life)
                case act.Leave(reason=reason):
                    self.left = reason
                case _:
                    self._to_slot(action)

    def _to_slot(self, action: object) -> None:
        match action:
            case act.HandOver(slot=slot, message=message):
                self._hand_over(slot, message)
            case act.PeekSlot(slot=slot) if slot in self.slots:
                self.slots[slot].peek()
            case act.RecallSlot(slot=slot) if slot in self.slots:
                self.slots[slot].recall()
            case act.AnswerSlot(slot=slot, granted=granted) if slot in self.slots:
                self.slots[slot].answered(granted=granted)
            case act.CancelSlot(slot=slot, serial=serial) if slot in self.slots:
                self.slots[slot].cancel(serial)
            case act.KillSlot(slot=slot) if slot in self.slots:
                self.slots[slot].end(-9)
            case act.StopSlot(slot=slot) if slot in self.slots:
                self.slots[slot].stop()
            case act.PeekSlot() | act.RecallSlot() | act.AnswerSlot() | act.CancelSlot() | act.KillSlot():
                pass  # its exit is about to be told
            case act.StopSlot() | act.LogEvent():
                pass  # likewise; for the log
            case _:
                raise TypeError(f"not an action of a pool: {action!r}")

    def _hand_over(self, slot: int, message: SlotTasks) -> None:
        process = self.slots.get(slot)
        if process is not None and not process.buried:
            process.hand_over(message)
            return
        for event in self.inbox:
            if isinstance(event, ev.SlotExited) and event.slot == slot:
                event.unstarted += sum(len(run.seqs) for run in message.runs)
                return
        raise Violation(f"{self.name}: tasks for slot {slot}, which is not there")

    def _fork(self, slot: int, life: int) -> None:
        if life != self._life:
            return
        if self.fork_failures:
            self.fork_failures -= 1
            self.setting.audit.faults["fork failure", "slot"] += 1
            self.tell(ev.SlotExited(slot, 0, 1, ready=False, log="fork: cannot allocate memory"))
            return
        process = f"{self.name}:{self.instance}"
        fresh = self.slots[slot] = SlotProcess(slot, self.setting, self.tell, self.clock, self.fall, process)
        fresh.most = self._config.max_tasks
        if self._config.process_of(slot) is not None:
            self._join(fresh)
        self.tell(ev.SlotReady(slot, 1000 + slot))
        if (age := self.setting.age()) < math.inf:
            self.setting.timetable.after(age, self._due, slot, life)

    def _join(self, slot: SlotProcess) -> None:
        """It is a thread of a process, which may have others."""
        slot.is_thread = True
        number = self._config.process_of(slot.slot)
        for other in self.slots.values():
            if other is not slot and other.alive and self._config.process_of(other.slot) == number:
                slot.mates = other.mates
                slot.mates.append(slot)
                return

    def _due(self, slot: int, life: int) -> None:
        """A slot is old, or its modules have changed."""
        if life == self._life:
            self.setting.audit.faults["replaced", "slot"] += 1
            self.tell(ev.SlotDue(slot, self.setting.reason()))
