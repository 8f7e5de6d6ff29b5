"""The simulated pool: one supervisor with its slots and its links to the hub."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.core.pool import PoolMachine
from taskmesh.core.pool_config import PoolConfig
from taskmesh.net.sizes import hold_against
from taskmesh.testing.audit import Violation
from taskmesh.testing.host import Host
from taskmesh.testing.hub_host import HubHost, LaneEnd
from taskmesh.testing.network import Link, unpacked
from taskmesh.testing.setting import Setting
from taskmesh.testing.slot_process import SlotProcess
from taskmesh.wire import messages as m

_TO_POOL = msgspec.msgpack.Decoder(m.ToPool).decode
START = 0.01
"""Seconds that a slot's fork takes."""
AGAIN = 0.3
"""Seconds after which a pool that its own task has killed is started again."""
SWEEP = 0.3
"""Seconds between a hub's looks at who has lost all links."""


class PoolHost(Host[PoolMachine]):
    """One pool and its successors under the same name.

    Attributes:
        collector, beat: links to the hub. control: the link from it. fork_failures: of the next forks.
        left: why the machine has left, None while it has not. is_twin: it asks for another one's name.
    """

    def __init__(self, setting: Setting, hub: HubHost, config: PoolConfig) -> None:
        super().__init__(config.pool, setting)
        self.collector = Link("collector", partial(hub.from_pool, config.pool))
        self.beat = Link("beat", partial(hub.from_pool, config.pool))
        self.control = Link("control", self._from_hub)
        self.blocked_in = ""
        self.slots: dict[int, SlotProcess] = {}
        self.fork_failures = 0
        self.left: str | None = None
        self.lane: LaneEnd | None = None
        self.is_twin = False
        self._hub = hub
        self._config = config
        self._dials = self._limit = 0

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
        self.offset = 1000.0 * self.setting.chance.randrange(1, 50)
        self.left = None
        self.boot(PoolMachine(self._config, self.clock()))

    def kill(self) -> None:
        """Kill -9: the slots go too; what the kernel has taken may still arrive."""
        for slot in self.slots.values():
            slot.vanish()
        self.slots.clear()
        super().kill()
        self._hang_up(signalled=self.setting.chance.random() < 0.5)
        for link in (self.collector, self.beat, self.control):
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

    def _from_hub(self, data: object) -> None:
        if not self.up:
            return
        before, message = self.machine.state, unpacked(data, _TO_POOL)
        self.tell(ev.FromHub(message))
        if isinstance(message, m.PoolCommand) and self.machine.state != before:
            self.setting.audit.obeyed(self.name, self.instance, self.machine.state)

    def _from_lane(self, lane: LaneEnd, data: object) -> None:
        if self.up and self.lane is lane:
            self.tell(ev.FromHub(unpacked(data, _TO_POOL)))

    def _dial(self, endpoint: str) -> None:
        self._hang_up(signalled=False)
        self._dials += 1
        self.setting.timetable.after(0.0005, self._dialled, endpoint, self._dials)

    def _dialled(self, endpoint: str, dial: int) -> None:
        if not self.up or dial != self._dials:
            return
        lane = self._hub.lanes.get(endpoint) if self._hub.up else None
        if lane is None or lane.link is not None:
            self._lane_lost(dial)
            return
        link = Link("lane", lambda data: self._from_lane(lane, data))
        link.blocked = self.blocked_in
        self.lane = lane
        self._hub.connected(lane, link)

    def _lane_lost(self, dial: int) -> None:
        if self.up and dial == self._dials:
            self.lane = None
            self.tell(ev.HubLaneLost())

    def _hang_up(self, *, signalled: bool) -> None:
        """This end closes the lane."""
        lane, self.lane = self.lane, None
        self._dials += 1
        if lane is None or lane.link is None:
            return
        lane.dead = True
        lane.link.reset()
        if signalled:
            self.setting.timetable.after(0.001, self._tell_hub, lane, self._hub.epoch)

    def _tell_hub(self, lane: LaneEnd, epoch: int) -> None:
        if self._hub.up and self._hub.epoch == epoch:
            self._hub.tell(ev.LaneLost(lane.session))

    def lane_closed(self, lane: LaneEnd, *, signalled: bool) -> None:
        """The hub's end of a lane is gone, or the lane's connection was reset."""
        lane.dead = True
        if lane.link is not None:
            lane.link.reset()
        if self.lane is lane and signalled:
            self.setting.timetable.after(0.001, self._lane_lost, self._dials)

    def reset_lane(self) -> None:
        """A reset of the lane's connection alone; either end may or may not be told."""
        lane = self.lane
        if lane is not None:
            if self.setting.chance.random() < 0.5:
                self.setting.timetable.after(0.001, self._tell_hub, lane, self._hub.epoch)
            self.lane_closed(lane, signalled=self.setting.chance.random() < 0.5)

    def reset_links(self) -> None:
        """A reset of every connection to the hub; all but the lane's are made again.

        The hub may learn of it when it has welcomed the pool anew.
        """
        hub, chance = self._hub, self.setting.chance
        lost = hub.machine.pools.lane_of(self.name) if hub.up and chance.random() < 0.5 else None
        if lost is not None:
            self.setting.timetable.after(SWEEP * chance.random(), self._tell_lost, lost.session, hub.epoch)
        self.reset_lane()
        for link in (self.collector, self.beat, self.control):
            link.reset()

    def _tell_lost(self, session: int, epoch: int) -> None:
        if self._hub.up and self._hub.epoch == epoch:
            self._hub.tell(ev.LinksLost(session))

    def links_in(self) -> list[Link]:
        """Links from the hub."""
        lane = self.lane
        return [self.control, lane.link] if lane is not None and lane.link is not None else [self.control]

    def links_out(self) -> list[Link]:
        """Links to the hub."""
        return [self.collector, self.beat]

    # --- actions ------------------------------------------------------------------------------------------

    def perform(self, actions: list[object]) -> None:
        """Does what the machine wants done, in order."""
        send = self.setting.network.send
        for action in actions:
            match action:
                case act.SendHub(message=message):
                    if isinstance(message, m.Results):
                        if self._limit:
                            hold_against(message, self._limit)
                        self.setting.audit.blamed(message.failed)
                    send(self.collector, message)
                case act.SendBeat(message=beat):
                    send(self.beat, beat)
                case act.DialLane(endpoint=endpoint, max_payload=limit):
                    self._limit = limit
                    self._dial(endpoint)
                case act.HangUp():
                    self._hang_up(signalled=self.setting.chance.random() < 0.7)
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
            case act.KillSlot(slot=slot) if slot in self.slots:
                self.slots[slot].end(-9)
            case act.StopSlot(slot=slot) if slot in self.slots:
                self.slots[slot].end(0)
            case act.PeekSlot() | act.RecallSlot() | act.AnswerSlot() | act.KillSlot() | act.StopSlot():
                pass  # its exit is about to be told
            case act.Record():
                pass  # for the log
            case _:
                raise TypeError(f"not an action of a pool: {action!r}")

    def _hand_over(self, slot: int, message: m.SlotTasks) -> None:
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
        self.slots[slot] = SlotProcess(slot, self.setting, self.tell, self.clock, self.fall, process)
        self.tell(ev.SlotReady(slot, 1000 + slot))
