"""A client machine on its own, with a pending table and a record of what it has sent."""

import pytest

from taskmesh.client.machine.machine import ClientMachine
from taskmesh.client.machine.settings import ClientSettings
from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.core.events import Queued
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, Failed, Run, Spec, Value
from tests.core.rig import handle, number_of, spec


def delivery(number: int, seq: int, epoch: int = 1) -> m.Deliver:
    """One outcome."""
    return m.Deliver(epoch, number, [DoneRun(1, 7, 1, "p/0", [seq], [b"r"], 0.1)], [])


class Client:
    """A client machine with a pending table, and what it has sent."""

    def __init__(self, max_payload: int = 0) -> None:
        self.now = 10.0
        self.pending: dict[int, Spec] = {}
        self.known: dict[int, Spec] = {}
        self.values: dict[int, Value] = {}
        self.payload = b"x"
        self.calls: dict[int, Spec] = {}  # of tasks that ignore their results
        config = ClientSettings(7, hello=1.0, patience=3.0, resend=2.0, max_payload=max_payload)
        self.machine = ClientMachine(config, self, self.now)
        self.failed: list[Failed] = []
        self.sent: list[object] = []
        self.resolved: list[int] = []
        self.lost: list[int] = []
        self.accepted: list[int] = []
        self.told: list[object] = []
        self.renewed: list[act.Renew] = []
        self.reconnects = 0
        self.session = 0
        self.tell(ev.Tick())

    def tell(self, event: object) -> None:
        for action in handle(self.machine, event, self.now):
            match action:
                case act.Send(message=message):
                    self.sent.append(message)
                case act.Resolve(done=done, failed=failed):
                    self.resolved += [seq for run in done for seq in run.seqs]
                    self.resolved += [failure.seq for failure in failed]
                    self.failed += failed
                    for seq in self.resolved:
                        self.pending.pop(seq, None)
                case act.Accept(seqs=seqs):
                    self.accepted += seqs
                case act.Tell(message=message):
                    self.told.append(message)
                case act.Renew():
                    self.renewed.append(action)
                case act.Reconnect():
                    self.reconnects += 1

    def hear(self, message: object) -> None:
        self.tell(ev.FromHubToClient(message))

    def welcome(
        self, epoch: int = 1, *, known: bool = False, max_tasks: int = 10_000, window: int = 0
    ) -> None:
        self.session += not known
        self.hear(m.ClientWelcome(epoch, max_tasks, 1 << 30, 1.0, window=window, session=self.session))

    def submit(self, *seqs: int, one: Spec | None = None, size: int = 1) -> None:
        one = one or spec()
        self.pending.update(dict.fromkeys(seqs, one))
        self.known[number_of(one)] = one
        run = Run(number_of(one), 0, list(seqs), [b"x" * size] * len(seqs))
        self.tell(Queued([(number_of(one), one)], [run]))

    def after(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, max(self.machine.deadline, self.now + 0.01))
            self.tell(ev.Tick())

    def of(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]

    def submitted(self) -> list[list[int]]:
        """The tasks of each Submit; one that says that there are no more has none."""
        submits = [submit for submit in self.of(m.Submit) if not submit.whole]
        return [[seq for run in submit.runs for seq in run.seqs] for submit in submits]

    # the pending table

    def __bool__(self) -> bool:
        return bool(self.pending)

    def pending_runs(self) -> tuple[list, list]:
        runs = [Run(number_of(one), 0, [seq], [b"x"], again=True) for seq, one in self.pending.items()]
        return [(number_of(one), one) for one in self.pending.values()], runs

    def values_of(self, seqs: list[int]) -> list:
        return [self.values[seq] for seq in seqs if seq in self.values]

    def specs_of(self, numbers: list[int]) -> list:
        return [(number, self.known[number]) for number in numbers if number in self.known]

    def calls_of(self, seqs: list[int]) -> tuple[list, list]:
        found = {seq: self.calls[seq] for seq in seqs if seq in self.calls}
        return [(number_of(one), one) for one in found.values()], [
            Run(number_of(one), 0, [seq], [self.payload], again=True, rerun=1) for seq, one in found.items()
        ]

    def lose_early(self, unsent: set[int]) -> list:
        early = [seq for seq, one in self.pending.items() if one.acks == "early" and seq not in unsent]
        for seq in early:
            del self.pending[seq]
        return [Failed(7, seq, 0, "lost") for seq in early]


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def session(client) -> Client:
    client.welcome()
    client.sent.clear()
    return client
