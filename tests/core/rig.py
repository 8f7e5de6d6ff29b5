"""Machines on a bench: told things by hand, with what they want done sorted into lists."""

from collections import defaultdict
from typing import Any

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.core.ids import text_of
from taskmesh.core.specs import spec_number
from taskmesh.hub.machine.books.ledger import tasks_by_id
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import TaskRecord
from taskmesh.hub.machine.figures.functions import FunctionFigures
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.machine.views import task_views
from taskmesh.link.shell import Machine
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import Entry
from taskmesh.messages.runs import SUCCESS, DoneRun, Failed, Held, LaneRun, Progress, Run, Spec, Value
from taskmesh.messages.slot_messages import SlotResults, SlotSegment
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.settings import PoolSettings

EPOCH = 9
Key = tuple[int, int, int]  # client, counter, attempt


def spec(name: str = "f", **options: object) -> Spec:
    return Spec(function=name.encode(), name=name, **options)


def spec_entry(number: int, one: Spec) -> SpecEntry:
    """Return a spec as a hub keeps it."""
    return SpecEntry(number, one, FunctionFigures(one.name))


number_of = spec_number
ONE = number_of(spec())
"""The number of the spec that most tests use."""


def handle(machine: Machine, event: object, now: float) -> list[Any]:
    """Tell a machine one event; return what is to be done."""
    machine.take(event, now)
    return list(machine.act(now))


class HubRig:
    """A hub, what it pushed and has not got back, what it delivered."""

    def __init__(self, **config: object) -> None:
        self.now = 100.0
        self.has_ports = True  # for lanes
        self._users: dict[int, str] = {}
        self.config = HubSettings(**{"epoch": EPOCH, **config})
        self.hub = HubMachine(self.config, self.now)
        self.held: dict[int, list[Key]] = defaultdict(list)  # by session
        self.pushed: list[m.Tasks] = []
        self.published: list[tuple[str, object]] = []
        self.told: dict[int, list[object]] = defaultdict(list)  # by client
        self.closed: list[int] = []
        self.records: list[act.LogEvent] = []
        self.journal: dict[str, Entry] = {}
        self.unwritten: list[act.WriteJournal] = []
        self._reports: dict[int, int] = defaultdict(int)
        self._submits: dict[int, int] = defaultdict(int)
        self._next: dict[int, int] = defaultdict(int)

    def tell(self, event: object) -> list[object]:
        actions = handle(self.hub, self._with_user(event), self.now)
        opened = []
        for action in actions:
            match action:
                case act.OpenLane(session=session):
                    opened.append(session)
                case act.CloseLane(session=session):
                    self.closed.append(session)
                    self.held.pop(session, None)
                case act.PushTasks(session=session, message=message):
                    self.pushed.append(message)
                    for run in message.runs:
                        self.held[session] += [(run.client, seq, run.attempt) for seq in run.seqs]
                case act.Publish(pool=pool, message=message):
                    self.published.append((pool, message))
                case act.SendClient(client=client, message=message):
                    self.told[client].append(message)
                case act.LogEvent() | act.WriteJournal():
                    self._note(action)
        for session in opened:
            self.tell(ev.LaneOpened(session, f"port-{session}" if self.has_ports else ""))
        self.hub.check()
        return actions

    def _with_user(self, event: object) -> object:
        """Have all that one client says show the key that it has shown first, unless it shows another."""
        if isinstance(event, ev.FromClient):
            event.user = event.user or self._users.get(event.client, "")
            self._users.setdefault(event.client, event.user)
        return event

    def _note(self, action: act.LogEvent | act.WriteJournal) -> None:
        if isinstance(action, act.LogEvent):
            self.records.append(action)
        else:
            self.unwritten.append(action)

    def write(self) -> None:
        """The journal is written, up to what the hub has asked for."""
        while self.unwritten:
            writes, self.unwritten = self.unwritten, []
            for action in writes:
                for key, entry in action.changes.items():
                    if entry is None:
                        self.journal.pop(key, None)
                    else:
                        self.journal[key] = entry
            self.tell(ev.JournalWritten(writes[-1].number))

    def after(self, seconds: float) -> None:
        """Let time pass, in steps that a loop would take."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.2)
            self.tell(ev.Tick())

    # --- pools

    def hello(
        self, pool: str = "p", *, slots: int = 2, number: int = 1, instance: int = 1, **more: object
    ) -> None:
        fields = {"queues": ["default"], "tags": [], "epoch": 0, "session": 0, "inventory": [], **more}
        self.tell(ev.FromPool(m.Hello(pool, instance, number, slots, **fields)))

    def join(self, pool: str = "p", **more: object) -> int:
        """A pool says Hello and beats; returns its session."""
        self.hello(pool, **more)
        session = self.session(pool)
        self.beat(session, pool)
        return session

    def session(self, pool: str = "p") -> int:
        lane = self.hub.state.lane_of(pool)
        assert lane is not None
        return lane.session

    def beat(
        self,
        session: int,
        pool: str = "p",
        state: str = "ready",
        running: tuple[Key, ...] = (),
        slots: int = -1,
    ) -> None:
        lane = self.hub.state.lanes.get(session)
        received = lane.sequence if lane is not None else 0
        progress = [Progress(client, seq, attempt, 0, -1, f"{pool}/0") for client, seq, attempt in running]
        self.tell(ev.FromPool(m.Beat(EPOCH, session, pool, received, 0, 0, progress, state, slots=slots)))

    def report(
        self,
        session: int,
        done: tuple[Key, ...] = (),
        failed: tuple[Failed, ...] = (),
        returned: tuple[Key, ...] = (),
        *,
        elapsed: float = 0.001,
        epoch: int = EPOCH,
    ) -> None:
        self._reports[session] += 1
        runs = [DoneRun(self.spec_of(key), key[0], key[2], "p/0", [key[1]], [b"r"], elapsed) for key in done]
        gone = {*done, *returned, *((failure.client, failure.seq, failure.attempt) for failure in failed)}
        self.held[session] = [key for key in self.held[session] if key not in gone]
        back = [Held(client, attempt, [seq]) for client, seq, attempt in returned]
        message = m.Results(epoch, session, self._reports[session], runs, list(failed), back)
        self.tell(ev.FromPool(message))

    def spec_of(self, key: Key) -> int:
        record = self.hub.state.ledger.by_id(key[0] << 64 | key[1])
        return record.spec.number if record is not None else 1

    def fail(self, session: int, key: Key, kind: str = "exception", **more: object) -> None:
        self.report(session, failed=(Failed(*key, kind, **{"retryable": True, **more}),))

    def values_of(self, seq: int) -> tuple[list[int], dict[int, Value]]:
        """The needs of a task as they were pushed last, and all outcomes that lanes were sent."""
        sent: dict[int, Value] = {}
        needs: list[int] = []
        for message in self.pushed:
            for run in message.runs:
                sent |= {value.seq: value for value in run.values}
                if seq in run.seqs and run.needs:
                    needs = run.needs[run.seqs.index(seq)]
        return needs, sent

    # --- clients

    def client(self, client: int = 1, credit: int = 1 << 20) -> int:
        self.tell(ev.FromClient(client, m.ClientHello(client, 0, credit=credit)))
        return client

    def submit(
        self,
        client: int = 1,
        count: int = 1,
        one: Spec | None = None,
        *,
        group: int = 0,
        key: str = "",
        size: int = 8,
    ) -> list[int]:
        """Submits tasks; returns their counters."""
        one = one or spec()
        first = self._next[client] + 1
        self._next[client] += count
        self._submits[client] += 1
        seqs = list(range(first, first + count))
        run = Run(number_of(one), group, seqs, [b"x" * size] * count, key)
        self.tell(ev.FromClient(client, m.Submit(self._submits[client], [(number_of(one), one)], [run])))
        return seqs

    def depend(
        self,
        *needs: int,
        after: tuple[int, ...] = (),
        when: int = SUCCESS,
        client: int = 1,
        one: Spec | None = None,
        values: tuple[Value, ...] = (),
        delay: float = 0.0,
        key: str = "",
        seq: int = 0,
    ) -> int:
        """Submits one task that depends on others; returns its counter."""
        one = one or spec()
        self._next[client] += 1
        self._submits[client] += 1
        seq = seq or self._next[client]
        run = Run(number_of(one), 0, [seq], [b"call"], key, delay=delay, when=when)
        run.needs, run.after = ([list(needs)] if needs else []), ([list(after)] if after else [])
        submit = m.Submit(self._submits[client], [(number_of(one), one)], [run], values=list(values))
        self.tell(ev.FromClient(client, submit))
        return seq

    def cancel(self, client: int, *seqs: int) -> None:
        self._submits[client] += 1
        self.tell(ev.FromClient(client, m.Submit(self._submits[client], [], [], list(seqs))))

    def cancel_unstarted(self, client: int, *seqs: int) -> None:
        self._submits[client] += 1
        submit = m.Submit(self._submits[client], [], [], unstarted=list(seqs))
        self.tell(ev.FromClient(client, submit))

    def outcomes(self, client: int = 1) -> dict[int, str]:
        """What the client was told of its tasks, once each."""
        found: dict[int, str] = {}
        numbers = set()
        for message in self.told[client]:
            if isinstance(message, m.Deliver) and message.number not in numbers:
                numbers.add(message.number)
                pairs = [(seq, "done") for run in message.done for seq in run.seqs]
                pairs += [(failure.seq, failure.kind) for failure in message.failed]
                for seq, kind in pairs:
                    assert seq not in found
                    found[seq] = kind
        return found

    @property
    def tasks(self) -> dict[int, TaskRecord]:
        """The records of all tasks on their way, by id."""
        return dict(tasks_by_id(self.hub.state.ledger))

    def state(self, client: int, seq: int) -> str:
        record = self.hub.state.ledger.by_id(client << 64 | seq)
        return record.state.name if record is not None else "finished"

    def why(self, client: int, seq: int) -> str:
        """Return the reason that people are told why a task is not done."""
        return str(task_views.task(self.hub.state, text_of(client << 64 | seq), self.now)["why"])


class PoolRig:
    """A pool with slots that do what they are told to."""

    def __init__(
        self, slots: int = 2, *, welcome: bool = True, grace: float = 30.0, **settings: object
    ) -> None:
        self.now = 50.0
        self.pool = PoolMachine(PoolSettings("p", 1, slots, lease=3.0, grace=grace, **settings), self.now)
        self.sent: list[object] = []
        self.actions: list[object] = []
        self.handed: dict[int, list[Key]] = defaultdict(list)  # by slot, in order, not reported
        self.serials: dict[int, int] = defaultdict(int)
        self.known: dict[int, set[int]] = defaultdict(set)  # by slot: the specs that it has
        self.lane_seq = 0
        self.tell(ev.Tick())
        for slot in range(slots):
            self.tell(ev.SlotReady(slot, 100 + slot))
        if welcome:
            self.welcome()

    def tell(self, event: object) -> list[object]:
        actions = handle(self.pool, event, self.now)
        self.actions += actions
        for action in actions:
            match action:
                case act.SendHub(message=message):
                    self.sent.append(message)
                case act.SendBeat(message=beat):
                    self.sent.append(beat)
                case act.HandOver(slot=slot, message=message):
                    known = self.known[slot]
                    known.update(number for number, one in message.specs if one)
                    known.difference_update(number for number, one in message.specs if not one)
                    for run in message.runs:
                        assert run.spec in known, f"slot {slot} lacks the spec of {run}"
                        self.handed[slot] += [(run.client, seq, run.attempt) for seq in run.seqs]
        self.pool.check()
        return actions

    def after(self, seconds: float) -> list[object]:
        self.now += seconds
        return self.tell(ev.Tick())

    def of(self, kind: type) -> list[object]:
        """The actions or messages of a kind so far."""
        return [one for one in (*self.actions, *self.sent) if isinstance(one, kind)]

    def welcome(self, session: int = 1, epoch: int = EPOCH, stale: tuple[Key, ...] = ()) -> None:
        hello = self.of(m.Hello)[-1]
        held = [Held(client, attempt, [seq]) for client, seq, attempt in stale]
        self.lane_seq = 0
        self.tell(ev.FromHub(m.Welcome(epoch, session, "p", 1, hello.number, "port", 1.0, 3.0, held)))

    def lose_lane(self) -> None:
        """Some time after the welcome, so that the next Hello comes at once."""
        self.now += 0.6
        self.tell(ev.HubLaneLost())

    def push(
        self, *seqs: int, one: Spec | None = None, attempt: int = 1, client: int = 1, known: bool = True
    ) -> None:
        one = one or spec()
        self.lane_seq += 1
        run = LaneRun(number_of(one), client, attempt, 0, list(seqs), [b"x"] * len(seqs))
        specs = [(number_of(one), one)] if known else []
        pool = self.pool
        self.tell(ev.FromHub(m.Tasks(pool.member.epoch, pool.session, self.lane_seq, 0, 1.0, specs, [run])))

    def finish(self, slot: int, count: int = 1, elapsed: float = 0.001) -> None:
        """The slot reports its next tasks as done."""
        first = self.serials[slot]
        self.serials[slot] += count
        del self.handed[slot][:count]
        segment = SlotSegment(first, [b"r"] * count, elapsed * count)
        self.tell(ev.SlotFinished(slot, SlotResults([segment], [], self.now)))

    def recalled(self, slot: int, count: int) -> None:
        if count:
            del self.handed[slot][-count:]
            self.serials[slot] += 0
        self.tell(ev.SlotRecalled(slot, count))

    def exited(self, slot: int, unstarted: int = 0, **more: object) -> None:
        self.handed[slot].clear()
        self.known[slot].clear()
        self.serials[slot] = 0
        self.tell(ev.SlotExited(slot, unstarted, more.pop("status", -9), **more))

    def reports(self) -> list[m.Results]:
        return self.of(m.Results)

    def done(self) -> list[int]:
        return [seq for results in self.reports() for run in results.done for seq in run.seqs]

    def failed(self) -> dict[int, str]:
        return {failure.seq: failure.kind for results in self.reports() for failure in results.failed}

    def returned(self) -> list[int]:
        return [seq for results in self.reports() for held in results.returned for seq in held.seqs]
