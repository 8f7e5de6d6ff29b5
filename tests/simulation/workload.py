"""What simulated clients submit: tasks whose behaviour is planned, so that their outcomes can be checked."""

from __future__ import annotations

import enum
import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from taskmesh.core.ids import SEQ_MASK, client_of, parse, seq_of, task_id, text_of
from taskmesh.core.specs import spec_number
from taskmesh.hub.machine.books.failures import REFUSALS
from taskmesh.messages.runs import (
    ATTACHMENT,
    ATTACHMENT_NAME,
    CHUNK,
    PROMISE,
    PROMISE_NAME,
    SINK_VALUE,
    SUCCESS,
    LimitRule,
    Spec,
)

_KEY = struct.Struct(">QQ")
BAD_KINDS = ("argument", "function", "result")


class Act(enum.Enum):
    """What a task does when it runs."""

    OK = "ok"
    FLAKY = "raises a few times, then succeeds"
    FAILS = "raises always"
    BAD = "cannot be rebuilt"
    POISON = "kills its slot always"
    SHAKY = "kills its slot a few times, then succeeds"
    HOG = "takes all memory always"
    GREEDY = "takes all memory a few times, then succeeds"
    HANGS = "never ends"
    STALLS = "never ends a few times, then succeeds"
    PLAGUE = "kills its pool always"


@dataclass(slots=True, eq=False)
class Plan:
    """One task and what is known of its life.

    Attributes:
        seconds: how long a run takes. times: how often it misbehaves before it succeeds.
        runs: executions started. deaths: slots that died while it ran. calm: no fault can come any more.
        submitted: when, in the world's time.
        start_at: when it may start; 0 for at once. arrived: when it first came to a hub.
        needs, after, when: the tasks that it depends on, as in `Run`. successes: executions that returned.
    """

    client: int
    seq: int
    kind: Kind
    act: Act
    seconds: float
    times: int
    payload: bytes
    group: int
    key: str = ""
    runs: int = 0
    deaths: int = 0
    spared: int = 0
    calm: bool = False
    submitted: float = 0.0
    start_at: float = 0.0
    arrived: float = 0.0
    needs: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    when: int = SUCCESS
    successes: int = 0

    @property
    def part(self) -> str:
        """The key of its limits."""
        keyed = any(rule.keyed for rule in self.kind.spec.limits)
        return f"user-{self.seq % 3}" if keyed else ""

    @property
    def upstream(self) -> tuple[int, ...]:
        """All tasks that it depends on."""
        return (*self.needs, *self.after)

    @property
    def result(self) -> bytes:
        """What it returns."""
        return self.payload if self.is_value else result_of(self.payload)

    @property
    def keeps_result(self) -> bool:
        """Return True if its client hears the result."""
        return not (self.kind.spec.ignore_result or self.kind.spec.sink)

    @property
    def may_be_needed(self) -> bool:
        """Return True if its result can be had when others need it."""
        return not (self.kind.spec.sink or (self.kind.spec.ignore_result and self.kind.spec.acks == "early"))

    @property
    def is_promise(self) -> bool:
        """True if no function stands behind it."""
        return self.kind.spec.kind == PROMISE

    @property
    def is_value(self) -> bool:
        """True if its payload goes to a sink, and nothing runs."""
        return self.kind.spec.kind == SINK_VALUE

    @property
    def is_attachment(self) -> bool:
        """True if it ends as another task does, whose id is its key."""
        return self.kind.spec.kind == ATTACHMENT

    @property
    def bad_kind(self) -> str:
        """Names the part that cannot be rebuilt, if there is one."""
        return BAD_KINDS[self.seq % len(BAD_KINDS)]

    @property
    def is_refused(self) -> bool:
        """Whether no pool can even begin it: executions count, and it has not started."""
        return self.act is Act.BAD and self.bad_kind in REFUSALS

    def too_large(self, limit: int) -> bool:
        """Whether its call or its result is above this many bytes, 0 for any number."""
        return 0 < limit < max(len(self.payload), len(self.result))

    def expected_runs(self, limit: int) -> int:
        """How often it runs when nothing interferes, for a hub that takes calls of `limit` bytes."""
        if 0 < limit < len(self.payload) or self.is_value:
            return 0
        once = self.kind.spec.acks == "early" or self.kind.spec.kind == CHUNK
        if self.act in (Act.OK, Act.BAD) or once:
            return 1
        retries = self.kind.spec.max_retries
        match self.act:
            case Act.FAILS | Act.HANGS:
                return 1 + retries
            case Act.FLAKY | Act.STALLS:
                return min(self.times, retries) + 1
            case Act.POISON | Act.HOG:
                return 3
            case _:
                return min(self.times, 2) + 1


def result_of(payload: bytes) -> bytes:
    """The result of a task with this payload: it depends on every byte."""
    return b"r" + zlib.crc32(payload).to_bytes(4, "big") + payload[4:]


def key_of(payload: bytes) -> tuple[int, int]:
    """The client and counter that a payload was made for."""
    found: tuple[int, int] = _KEY.unpack_from(payload)
    return found


@dataclass(frozen=True, slots=True)
class Kind:
    """A spec with the behaviours that its tasks have, weighted, and how long they take.

    `keyed`: the share of them that have one of three keys.
    """

    number: int
    spec: Spec
    acts: tuple[tuple[Act, int], ...]
    seconds: tuple[float, float]
    slow: float
    weight: int
    keyed: float


def _kind(
    name: str,
    *,
    seconds: tuple[float, float] = (0.0, 0.0),
    acts: tuple[tuple[Act, int], ...] = ((Act.OK, 1),),
    slow: float = 0.0,
    weight: int = 10,
    keyed: float = 0.0,
    **options: object,
) -> Kind:
    spec = Spec(function=name.encode() * 20, name=name, **options)  # type: ignore[arg-type]
    return Kind(spec_number(spec), spec, acts, seconds, slow, weight, keyed)


OK = (Act.OK, 8)
RATE, GPU, USER = LimitRule("rate", 12, 1.0), LimitRule("gpu", 3), LimitRule("user", 1, keyed=True)
KINDS = (
    _kind("instant", slow=0.02, weight=30),
    _kind("instant-a", queue="a", slow=0.02, weight=20),
    _kind("short", seconds=(0.001, 0.006), slow=0.05, weight=25, keyed=0.15, keep=3.0),
    _kind("long", seconds=(0.03, 0.5), queue="a", weight=10, keyed=0.15),
    _kind(
        "flaky", acts=(OK, (Act.FLAKY, 6), (Act.FAILS, 2)), max_retries=2, backoff=0.05, seconds=(0.0, 0.004)
    ),
    _kind(
        "shared",
        acts=(OK, (Act.FLAKY, 4), (Act.FAILS, 4), (Act.SHAKY, 3), (Act.POISON, 1)),
        queue="a",
        seconds=(0.05, 1.0),
        max_retries=1,
        backoff=0.05,
        weight=5,
        keyed=1.0,
    ),
    _kind("bad", acts=(OK, (Act.BAD, 4)), queue="b", weight=6),
    _kind(
        "deadly",
        acts=((Act.OK, 16), (Act.POISON, 2), (Act.SHAKY, 4), (Act.HOG, 1), (Act.GREEDY, 3)),
        seconds=(0.0, 0.003),
        weight=14,
    ),
    _kind(
        "limited",
        acts=(OK, (Act.HANGS, 2), (Act.STALLS, 3)),
        seconds=(0.001, 0.02),
        hard_timeout=0.2,
        max_retries=1,
        backoff=0.02,
        weight=6,
    ),
    _kind("fleeting", seconds=(0.0, 0.01), expires=0.6, stream_logs=True, weight=8),
    _kind(
        "once",
        acts=((Act.OK, 14), (Act.FAILS, 2), (Act.POISON, 1)),
        seconds=(0.0, 0.02),
        acks="early",
        max_retries=2,
        weight=14,
    ),
    _kind(
        "chunk",
        acts=((Act.OK, 14), (Act.POISON, 1), (Act.HOG, 1)),
        kind=CHUNK,
        seconds=(0.002, 0.02),
        weight=6,
    ),
    _kind("rated", limits=(RATE,), seconds=(0.0, 0.02), max_retries=1, backoff=0.05, weight=5),
    _kind("throttled", limits=(RATE, GPU), acts=(OK, (Act.SHAKY, 2)), seconds=(0.0, 0.05), weight=4),
    _kind("parted", limits=(GPU, USER), queue="a", acts=(OK, (Act.FLAKY, 2)), seconds=(0.0, 0.1), weight=4),
    _kind("silent", ignore_result=True, seconds=(0.0, 0.02), slow=0.02, weight=14),
    _kind(
        "silent-flaky",
        ignore_result=True,
        acts=(OK, (Act.FLAKY, 2), (Act.FAILS, 1), (Act.SHAKY, 2)),
        queue="a",
        seconds=(0.0, 0.1),
        max_retries=1,
        backoff=0.05,
        weight=8,
    ),
    _kind("silent-once", ignore_result=True, acks="early", seconds=(0.0, 0.02), weight=3),
    _kind("urgent", priority=5, seconds=(0.0, 0.002), weight=6),
    _kind("tagged", tags=("gpu",), queue="b", seconds=(0.0, 0.02), weight=6),
    _kind("bound", on_client_loss="cancel", seconds=(0.001, 0.2), weight=8),
)
SINKS = ("x", "y")
TO_SINKS = (
    _kind("to-x", sink="x", slow=0.02, weight=40),
    _kind(
        "to-x-flaky",
        sink="x",
        queue="a",
        acts=(OK, (Act.FLAKY, 4), (Act.FAILS, 3), (Act.SHAKY, 2), (Act.POISON, 1)),
        seconds=(0.0, 0.1),
        max_retries=1,
        backoff=0.05,
        weight=20,
    ),
    _kind("to-y", sink="y", seconds=(0.0, 0.1), weight=20),
    _kind("to-y-once", sink="y", acks="early", seconds=(0.0, 0.02), weight=6),
    _kind("to-y-fleeting", sink="y", expires=0.6, seconds=(0.0, 0.02), weight=6),
)
"""Of worlds with consumers only."""
VALUES = (
    _kind("value-x", sink="x", kind=SINK_VALUE, weight=60),
    _kind("value-y", sink="y", kind=SINK_VALUE, on_client_loss="cancel", weight=30),
)
"""Of some of these worlds: values that clients put into sinks by themselves."""
URGENT, _, BOUND = KINDS[-3:]
UNSERVED = _kind("unserved", queue="nowhere", expires=3.0)
"""Of a scene only: a hub may die between two of its attempts, or before its first."""
PROMISED_FOR = 1000.0
PROMISED = _kind(PROMISE_NAME, kind=PROMISE, keep=PROMISED_FOR)
"""Of a scene only: tasks without a function, which clients fulfil."""
ATTACHED = _kind(ATTACHMENT_NAME, kind=ATTACHMENT, on_client_loss="cancel")
"""Of a scene only: tasks without a function, which end as others do."""
SHARED = next(kind for kind in KINDS if kind.keyed == 1.0)
INSTANT = KINDS[0]
SLOW_SECONDS = 3.0
KEPT = next(kind for kind in KINDS if kind.spec.keep)
LONGER = 1000.0
CALM_KINDS = tuple(
    kind for kind in KINDS if kind.spec.name in ("instant", "short", "long", "instant-a", "urgent", "once")
)


class Workload:
    """Makes plans; finds a plan by the payload that a slot was given."""

    def __init__(self, chance: random.Random) -> None:
        self.plans: dict[tuple[int, int], Plan] = {}
        self.firings: set[tuple[int, int]] = set()
        self._chance = chance
        self._kinds: tuple[Kind, ...] = KINDS
        self._acts = {
            kind.spec.name: ([act for act, _ in kind.acts], [weight for _, weight in kind.acts])
            for kind in (*KINDS, *TO_SINKS, *VALUES, UNSERVED, PROMISED, ATTACHED)
        }

    def firing(self, client: int, seq: int, number: int, spec: Spec, payload: bytes, key: str) -> Plan:
        """The plan of a task that a schedule has made: it succeeds."""
        plan = self.plans.get((client, seq))
        if plan is None:
            kind = Kind(number, spec, ((Act.OK, 1),), (0.0, 0.0), 0.0, 1, 0.0)
            seconds = 0.05 * (seq % 3)
            plan = self.plans[client, seq] = Plan(client, seq, kind, Act.OK, seconds, 0, payload, 0, key)
            self.firings.add((client, seq))
        return plan

    def use_sinks(self, *, values: bool) -> None:
        """From now on the outcomes of some tasks go to sinks; perhaps clients put values there, too."""
        self._kinds = (*KINDS, *TO_SINKS, *(VALUES if values else ()))

    def burst(self, client: int, first: int, count: int) -> list[Plan]:
        """`count` new tasks of a client, with counters from `first` on."""
        kinds = self._chance.choices(self._kinds, [kind.weight for kind in self._kinds], k=count)
        return [self._plan(client, first + index, kind) for index, kind in enumerate(kinds)]

    def calm_burst(
        self, client: int, first: int, count: int, kinds: Sequence[Kind] = CALM_KINDS
    ) -> list[Plan]:
        """The same of tasks that succeed at once."""
        plans = []
        for index in range(count):
            plan = self._plan(client, first + index, self._chance.choice(kinds))
            plan.act, plan.key, plan.calm = Act.OK, "", True
            plan.payload = plan.payload[: _KEY.size]  # no hub finds it too large
            plan.seconds = min(plan.seconds, 0.2)
            plans.append(plan)
        return plans

    def steady_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of tasks that every pool may run, and that take a while."""
        plans = self.calm_burst(client, first, count, (URGENT,))
        for plan in plans:
            plan.seconds = 0.05
        return plans

    def linked_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of one group, which go in one run."""
        plans = self.steady_burst(client, first, count)
        for plan in plans:
            plan.group = 0
        return plans

    def quick_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of tasks that every pool may run, and that take no time."""
        plans = self.calm_burst(client, first, count, (INSTANT,))
        for plan in plans:
            plan.seconds = 0.0
        return plans

    def slow_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same function's, but slow now."""
        plans = self.calm_burst(client, first, count, (INSTANT,))
        for plan in plans:
            plan.seconds = SLOW_SECONDS
        return plans

    def plague_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of tasks of which one kills its pool whenever it runs, with all slots."""
        plans = self.steady_burst(client, first, count)
        self._chance.choice(plans).act = Act.PLAGUE
        return plans

    def keyed_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of tasks under one key each: their outcomes are kept."""
        plans = self.calm_burst(client, first, count, (KEPT,))
        for index, plan in enumerate(plans):
            plan.key = f"kept-{index}"
        return plans

    def shared_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of tasks under one key each, of which most end badly, sooner or later."""
        acts = (Act.FAILS, Act.FLAKY, Act.SHAKY, Act.POISON, Act.OK)
        plans = [self._plan(client, first + index, SHARED) for index in range(count)]
        for index, plan in enumerate(plans):
            plan.key, plan.act = f"both-{index}", acts[index % len(acts)]
            plan.seconds, plan.times, plan.payload = 1.0, 1, plan.payload[: _KEY.size]
        return plans

    def unserved_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of tasks that nobody takes."""
        plans = [self._plan(client, first + index, UNSERVED) for index in range(count)]
        for plan in plans:
            plan.payload = plan.payload[: _KEY.size]
        return plans

    def promised_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """Promises, each under a key that all clients use."""
        plans = [self._plan(client, first + index, PROMISED) for index in range(count)]
        for index, plan in enumerate(plans):
            plan.key, plan.payload, plan.calm = f"promise-{index}", plan.payload[: _KEY.size], True
        return plans

    def slow_steady_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of tasks that every pool may run, and that are under way for a while."""
        plans = self.steady_burst(client, first, count)
        for plan in plans:
            plan.seconds = 1.0
        return plans

    def attached_burst(self, others: Sequence[Plan], client: int, first: int, count: int) -> list[Plan]:
        """Attachments of other clients' tasks."""
        plans = [self._plan(client, first + index, ATTACHED) for index in range(count)]
        for plan, other in zip(plans, others, strict=True):
            plan.key, plan.payload, plan.calm = text_of(task_id(other.client, other.seq)), b"", True
        return plans

    def attached_to(self, plan: Plan) -> Plan:
        """The task that an attachment ends as."""
        task = parse(plan.key)
        return self.plans[client_of(task), seq_of(task)]

    def bound_burst(self, client: int, first: int, count: int) -> list[Plan]:
        """The same of tasks that are bound to their client, and take longer than anybody waits for."""
        plans = [self._plan(client, first + index, BOUND) for index in range(count)]
        for plan in plans:
            plan.seconds = LONGER
        return plans

    def _plan(self, client: int, seq: int, kind: Kind) -> Plan:
        chance = self._chance
        acts, weights = self._acts[kind.spec.name]
        act = chance.choices(acts, weights)[0] if len(acts) > 1 else acts[0]
        low, high = kind.seconds
        seconds = low + (high - low) * chance.random() if high else 0.0
        if kind.slow and chance.random() < kind.slow:
            seconds = 0.05 + 1.2 * chance.random()
        payload = _KEY.pack(client, seq) + bytes(chance.randrange(24))
        plan = Plan(client, seq, kind, act, seconds, chance.randint(1, 2), payload, chance.randrange(3))
        if plan.is_value:
            plan.group = 0  # those of one sink travel together
        if kind.keyed and chance.random() < kind.keyed:
            plan.key = f"key-{chance.randrange(3)}"
        self.plans[client, seq] = plan
        return plan

    def of_task(self, client: int, seq: int, payload: bytes) -> Plan:
        """The plan of the task that was given this payload; a schedule's is known by its id."""
        task = client & SEQ_MASK, seq
        return self.plans[task if task in self.firings else key_of(payload)]
