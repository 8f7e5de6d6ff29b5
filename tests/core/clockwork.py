"""A hub whose clock on the wall can be set, with a pool, for tests of schedules."""

from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import FIRING
from taskmesh.messages.schedules import Declaration, Timing, split_tick
from tests.core.rig import HubRig, spec

WALL = 1_795_392_000.0  # 2026-11-23T00:00:00Z
HOUR = 3600.0


class Clockwork:
    """A hub with a pool, a clock on the wall and schedules; a step of its own time never takes long."""

    def __init__(self, wall: float = WALL, **config: object) -> None:
        self.begin(**config)
        self.join(wall)

    def begin(self, **config: object) -> None:
        """The hub starts."""
        self.rig = HubRig(**{"stall": 1e9, "lease": 1e9, "silent_beats": 1e9, "client_grace": 1e9, **config})

    def join(self, wall: float) -> None:
        """The pool joins, at a time on the wall."""
        self.session = self.rig.join(slots=50_000)
        self.set(wall)

    @property
    def wall(self) -> float:
        return self.rig.now + self.offset

    def set(self, wall: float) -> None:
        """Somebody sets the clock."""
        self.offset = wall - self.rig.now
        self.rig.tell(ev.Clock(self.offset))
        self.settle()

    def put(self, name: str = "n", client: int = 1, *, durable: bool | None = None, **timing: object) -> str:
        declaration = Declaration(name, Timing(**timing), spec("f", kind=FIRING, durable=durable), b"call")
        if client not in self.rig.hub.state.clients:
            self.rig.client(client)
        number = len(self.rig.told[client]) + 1
        self.rig.tell(ev.FromClient(client, m.PutSchedule(number, declaration)))
        self.rig.write()
        return self.answer(number, client)[1]

    def answer(self, number: int, client: int = 1) -> tuple[object, str]:
        [found] = [
            told for told in self.rig.told[client] if isinstance(told, m.Answer) and told.number == number
        ]
        return found.value, found.error

    def ask(self, verb: str, target: str) -> tuple[object, str]:
        self.rig.client()
        number = 1000 + len(self.rig.told[1])
        self.rig.tell(ev.FromClient(1, m.Command(number, verb, target)))
        self.rig.write()
        return self.answer(number)

    def go(self, seconds: float) -> None:
        """Let time pass, and the hub look whenever it wants to."""
        end = self.rig.now + seconds
        while (due := self.rig.hub.state.schedules.deadline) <= end:
            self.rig.now = max(self.rig.now, due)
            self.rig.tell(ev.Tick())
        self.rig.now = end
        self.settle()

    def stand_still(self, seconds: float) -> None:
        """The hub stands still."""
        self.rig.now += seconds
        self.settle()

    def settle(self) -> None:
        self.rig.tell(ev.Tick())
        while self.rig.hub.state.schedules.deadline <= self.rig.now:
            self.rig.tell(ev.Tick())
        self.rig.write()

    def finish(self) -> int:
        """All that runs ends well."""
        keys = list(self.rig.held[self.session])
        if keys:
            self.rig.report(self.session, done=tuple(keys))
        return len(keys)

    @property
    def ticks(self) -> list[float]:
        """The times that tasks were told, in seconds after WALL, in order."""
        runs = [run for message in self.rig.pushed for run in message.runs]
        return [split_tick(payload)[0] - WALL for run in runs for payload in run.payloads]

    @property
    def names(self) -> list[str]:
        """The keys of firings on their way."""
        found = {id(record): record for record in self.rig.tasks.values()}
        return [record.extra.key[1] for record in found.values()]

    def view(self, name: str = "n") -> dict[str, object]:
        return self.rig.hub.state.schedules.records[name].view()

    def events(self, kind: str) -> list[dict[str, object]]:
        return [record.fields for record in self.rig.records if record.kind == kind]
