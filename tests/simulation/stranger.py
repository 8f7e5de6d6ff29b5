"""Another key in a simulated world: it names what is the others', and has things of the same names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from taskmesh.core import events as ev
from taskmesh.core.ids import house_of, text_of
from taskmesh.core.specs import spec_number
from taskmesh.hub.machine.views.views import SAID
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import (
    ATTACHMENT,
    ATTACHMENT_NAME,
    FIRING,
    SINK_VALUE,
    SINK_VALUE_NAME,
    DoneRun,
    Failed,
    Held,
    Run,
    Spec,
)
from taskmesh.messages.schedules import Declaration, Timing
from tests.simulation.audit import Violation
from tests.simulation.hub_host import STRANGER, HubHost
from tests.simulation.setting import Setting
from tests.simulation.workload import PROMISED, SINKS, Plan

if TYPE_CHECKING:
    from taskmesh.hub.machine.machine import HubMachine

USER, POOL, TOKEN = "client:stranger", "worker:stranger", b"stranger's token"
LOOT = b"the stranger's"
NOWHERE = "a queue that no pool serves"
NEVER = 1e9
"""Seconds from one firing to the next; a shorter period ends where a clock was set forward."""


class Stranger:
    """Holder of a client's and a worker's key, who has seen all ids and names.

    Args:
        setting: of the world, whose chance it leaves alone: seeds play as they did without it.
        hub: takes what it says.
        chance: its own.
    """

    def __init__(self, setting: Setting, hub: HubHost, chance: random.Random) -> None:
        self._setting = setting
        self._hub = hub
        self._chance = chance
        self._seq = 0
        hub.stranger_hears = self.hears

    def plan(self, until: float) -> None:
        """Have it speak now and then."""
        for _ in range(self._chance.randrange(10, 30)):
            self._setting.timetable.at(until * self._chance.random(), self.speak)
        self._setting.timetable.at(until, self._say, m.ClientBye(cancel=True))

    def _say(self, message: m.ClientMessage, client: int = STRANGER) -> None:
        self._hub.tell(ev.FromClient(client, message, USER))
        self._hub.turn()

    def speak(self) -> None:
        """Say something about a task of somebody's, and about what has its names."""
        plans = list(self._setting.workload.plans.values())
        if (
            not (self._hub.up and plans) or self._hub.paused
        ):  # one that stands still hears it when all has changed
            return
        self._say(m.ClientHello(STRANGER, self._hub.epoch))
        speak = self._chance.choice((self._take_over, self._name, self._submit, self._join))
        speak(self._chance.choice(plans))

    def _take_over(self, plan: Plan) -> None:
        """Speak as another client, and as the hub's own."""
        state = self._hub.machine.state
        own = {house_of(state.config.epoch): None, **dict.fromkeys(state.house.clients.values())}
        for client in (plan.client, *own):
            self._say(m.ClientHello(client, self._hub.epoch), client)
            self._say(m.CancelTasks([plan.seq]), client)
            self._say(m.ResultAck(self._hub.epoch, 1 << 40), client)
            self._say(m.ClientBye(), client)

    def _name(self, plan: Plan) -> None:
        """Fulfil, take, and put what others have under these names."""
        spec = Spec(b"loot", "tick", kind=FIRING)
        self._say(m.Fulfil(1, plan.key or "promise-0", LOOT, 1000.0))
        for sink in SINKS:
            self._say(
                m.SinkReport(sink, self._chance.randrange(1, 9), 1, 0, 1 << 30, [(plan.client, plan.seq)])
            )
        self._say(m.PutSchedule(2, Declaration("a", Timing(period=NEVER), spec, LOOT)))
        self._say(m.DropSchedule(3, "a"))
        for what in ("dead", "events", "status"):
            self._say(m.Query(4, what))
        for what in ("task", "dead-letter", "dead-call"):
            self._say(m.Query(4, what, text_of(plan.client << 64 | plan.seq)))

    def _submit(self, plan: Plan) -> None:
        """Submit what has another's spec, number, key or id: none of it may run, or answer another's."""
        real, false = plan.kind.spec, replace(plan.kind.spec, queue=NOWHERE, sink="loot", durable=False)
        if plan.kind.number not in self._hub.machine.state.specs:
            self._enter(plan.kind.number, false, LOOT)
        kept = replace(real, queue=NOWHERE, durable=False, keep=1000.0, expires=5.0)
        self._enter(spec_number(kept), kept, LOOT, key=plan.key)
        promise = replace(PROMISED.spec, durable=False)
        self._enter(spec_number(promise), promise, b"", key=plan.key or "promise-0")
        attached = Spec(b"", ATTACHMENT_NAME, kind=ATTACHMENT, durable=False)
        self._enter(spec_number(attached), attached, b"", key=text_of(plan.client << 64 | plan.seq))
        value = Spec(b"", SINK_VALUE_NAME, kind=SINK_VALUE, sink=self._chance.choice(SINKS), durable=False)
        value = replace(value, on_client_loss="cancel")
        self._enter(spec_number(value), value, LOOT)

    def _enter(self, number: int, spec: Spec, payload: bytes, key: str = "") -> None:
        session = self._hub.machine.state.clients.get(STRANGER)
        if session is not None:
            self._seq += 1
            run = Run(number, 0, [self._seq], [payload], key)
            self._say(m.Submit(session.submitted + 1, [(number, spec)], [run]))

    def _join(self, plan: Plan) -> None:
        """Say Hello as another's pool, with what that has; and as one of its own, with what others have."""
        held = [Held(plan.client, attempt, [plan.seq]) for attempt in (1, 2, 9)]
        for lane in list(self._hub.machine.state.lanes.values()):
            said, epoch = lane.hello, self._hub.epoch
            hello = m.Hello(said.pool, said.instance, said.number + 1, 1, [NOWHERE], [], epoch, 0, held)
            self._hub.tell(ev.FromPool(hello, POOL, TOKEN))

    # --- what it hears

    def hears(self, message: m.ToClient) -> None:
        """Check that nothing in a message is another's."""
        for outcome in _outcomes(message):
            if isinstance(outcome, DoneRun) and any(payload != LOOT for payload in outcome.payloads):
                raise Violation(f"a stranger has another's outcome: {outcome}")
        if isinstance(message, m.Answer):
            if message.specs or message.runs:
                raise Violation(f"a stranger has another's call: {message}")
            if isinstance(message.value, dict) and message.value.get("history"):
                raise Violation(f"a stranger is told how another's task has failed: {message}")
            rows = message.value if isinstance(message.value, list) else []
            own = f"{STRANGER:016x}"
            rows = [row for row in rows if not str(row.get("task_id", "")).startswith(own)]
            if any(SAID.get(row.get("kind"), "task_id") in row for row in rows):
                raise Violation(f"a stranger is told of others' failures: {message}")


def check_sessions(machine: HubMachine) -> None:
    """Check that no session, and no lane, has become the stranger's."""
    for client, session in machine.state.clients.items():
        if (session.user == USER) != (client == STRANGER):
            raise Violation(f"the session {client} is of {session.user!r}")
    for lane in machine.state.lanes.values():
        if lane.user == POOL:
            raise Violation(f"a stranger is pool {lane.pool}")


def _outcomes(message: m.ToClient) -> Iterator[DoneRun | Failed]:
    if isinstance(message, m.Deliver | m.SinkDeliver):
        yield from message.done
        yield from message.failed
