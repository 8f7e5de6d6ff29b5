"""No well-formed message, however senseless, stops a machine or spoils its books (abuse list A5, A8-A11)."""

import os
import random
import typing
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmesh.client.machine.machine import ClientMachine
from taskmesh.client.machine.settings import ClientSettings
from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.core.events import Queued
from taskmesh.core.specs import spec_number
from taskmesh.errors import RemoteProtocolError
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.frames import Decoder, encode, from_client, from_pool, to_client, to_pool
from taskmesh.messages.runs import Failed, Run, Spec, Value
from taskmesh.messages.slot_messages import SlotResults, SlotSegment
from tests.core.rig import PoolRig, handle
from tests.fuzz.forger import Forger

EXAMPLES = int(os.environ.get("FUZZ_MACHINES", "250"))
EVENTS = 60
EPOCH = 7
STEPS = (0.0, 0.0, 0.001, 0.1, 1.0, 11.0)
CLIENTS = (1, 2)
SPEC = 3
SEEDS = st.integers(0, 2**32)
fuzzed = settings(max_examples=EXAMPLES, deadline=None, derandomize="FUZZ_MACHINES" not in os.environ)


def decoded(decoder: Decoder[typing.Any], message: typing.Any) -> typing.Any:
    """What arrives of a message; None when the wire refuses it."""
    try:
        return decoder.decode(encode(message))
    except RemoteProtocolError:
        return None


class HostilePeers:
    """A hub with clients and pools that know its epoch, and lie."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.forger = Forger(self.chance)
        self.now = 100.0
        self.hub = HubMachine(HubSettings(epoch=EPOCH, max_tasks=50, client_max_tasks=30), self.now)
        self.number = dict.fromkeys(CLIENTS, 0)

    def event(self) -> object:
        roll = self.chance.random()
        if roll < 0.5:
            return self._from_client()
        if roll < 0.92:
            message = decoded(from_pool, self.forger.struct(self._one_of(m.PoolMessage)))
            return message and ev.FromPool(message)
        return self.chance.choice((ev.Tick(), ev.LaneLost(1), ev.LinksLost(1), ev.ClientGone(1)))

    def _one_of(self, union: object) -> type:
        return self.chance.choice(typing.get_args(union))

    def _from_client(self) -> object:
        kind, client = self._one_of(m.ClientMessage), self.chance.choice(CLIENTS)
        message = self.forger.struct(kind)
        if kind is m.ClientHello:
            message.protocol = m.PROTOCOL
            client = message.client
        elif kind is m.Submit and self.chance.random() < 0.8:
            message = self._submit(client)
        message = decoded(from_client, message)
        return message and ev.FromClient(client, message)

    def _submit(self, client: int) -> m.Submit:
        """The next Submit of a client, whose tasks may have been there before."""
        number = self.number[client] = self.number[client] + 1
        key = self.chance.choice(("", "", "k"))
        first = max(1, number + self.chance.choice((-1, 0, 0, 0)))
        seqs = [first] if key else [first, first + 1]
        spec = self.forger.struct(Spec)
        own = SPEC if self.chance.random() < 0.1 else spec_number(spec)
        run = Run(own, 0, seqs, [b"x"] * len(seqs), key, self.chance.random() < 0.3)
        return m.Submit(number, [(own, spec)], [run], [], self.chance.choice((0, EPOCH)))

    def step(self) -> None:
        self.now += self.chance.choice(STEPS)
        event = self.event()
        if event is None:
            return
        for action in handle(self.hub, event, self.now):
            if isinstance(action, act.OpenLane):
                handle(self.hub, ev.LaneOpened(action.session, "5550"), self.now)
        self.hub.check()


@given(SEEDS)
@fuzzed
def test_no_message_stops_a_hub(seed):
    peers = HostilePeers(seed)
    for _ in range(EVENTS):
        peers.step()
    assert peers.hub.snapshot()["epoch"] == EPOCH


@given(SEEDS)
@fuzzed
def test_no_message_stops_a_pool(seed):
    chance = random.Random(seed)
    rig = PoolRig(2)
    forger = Forger(chance, [rig.pool.member.epoch, rig.pool.session, *range(6)])
    kinds = typing.get_args(m.ToPool)
    attempts = 0
    for _ in range(EVENTS):
        rig.now += chance.choice(STEPS[:-1])
        message = decoded(to_pool, forger.struct(chance.choice(kinds)))
        if message is None or isinstance(message, m.Refused):
            continue
        if isinstance(message, m.Tasks) and chance.random() < 0.8:
            message.epoch, message.session = rig.pool.member.epoch, rig.pool.session
            message.lane_seq = rig.pool.member.received + 1
            for run in message.runs:  # a hub may lie about much, but an attempt that is twice is its own harm
                attempts += 1
                run.attempt = attempts
        actions = rig.tell(ev.FromHub(message))
        answer_slots(rig, actions, chance)
    assert rig.pool.check() is None


def answer_slots(rig: PoolRig, actions: list[object], chance: random.Random) -> None:
    """Slots keep their contract: recalls are answered, and what they were handed is done in the end."""
    for action in actions:
        match action:
            case act.StartSlot(slot=slot):
                rig.tell(ev.SlotReady(slot, 100 + slot))
            case act.RecallSlot(slot=slot):
                rig.tell(ev.SlotRecalled(slot, max(0, rig.pool.slots[slot].count - 1)))
            case act.KillSlot(slot=slot) | act.CancelSlot(slot=slot):
                rig.tell(ev.SlotExited(slot, 0, -9))
    for slot in list(rig.pool.slots.values()):
        if slot.pieces and chance.random() < 0.7:
            segment = SlotSegment(slot.pieces[0].first, [b"r"], 0.001)
            rig.tell(ev.SlotFinished(slot.number, SlotResults([segment], [], rig.now)))


class NoTable:
    """A pending table without tasks."""

    def specs_of(self, numbers: typing.Sequence[int]) -> list[tuple[int, Spec]]:
        return []

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        return []

    def __bool__(self) -> bool:
        """There is nothing."""
        return False

    def pending_runs(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        return [], []

    def calls_of(self, seqs: Iterable[int]) -> tuple[list[tuple[int, Spec]], list[Run]]:
        return [], []

    def lose_early(self, unsent: typing.Container[int]) -> list[Failed]:
        return []


@given(SEEDS)
@fuzzed
def test_no_message_stops_a_client(seed):
    chance = random.Random(seed)
    forger = Forger(chance)
    now = 100.0
    client = ClientMachine(ClientSettings(client=5), NoTable(), now)
    kinds = typing.get_args(m.ToClient)
    for seq in range(1, EVENTS):
        now += chance.choice(STEPS)
        if chance.random() < 0.2:
            run = Run(SPEC, 0, [seq], [b"x"])
            handle(client, Queued([(SPEC, Spec(b"f", "f"))], [run]), now)
        message = decoded(to_client, forger.struct(chance.choice(kinds)))
        if message is None or (isinstance(message, m.ClientRefused) and message.reason):
            continue
        handle(client, ev.FromHubToClient(message), now)
        assert client.deadline == client.deadline, "a deadline that is no number would stop the loop"


@pytest.mark.parametrize("decoder", [from_client, from_pool, to_client, to_pool])
def test_forgeries_reach_the_machines(decoder):
    """Most forgeries are well-formed, or the tests above would show nothing."""
    forger = Forger(random.Random(1))
    kinds = typing.get_args(decoder._union)
    came = sum(
        decoded(decoder, forger.struct(kinds[number % len(kinds)])) is not None for number in range(400)
    )
    assert came > 200
