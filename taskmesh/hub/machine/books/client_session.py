"""Client sessions as the hub sees them: the outcomes that wait for each, and those that it has been sent."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator

from taskmesh.core.actions import SendClient
from taskmesh.hub.machine.books.states import TaskRecord
from taskmesh.link.link import SendWindow, size_of, size_of_failure
from taskmesh.messages.mesh_messages import Deliver, Submit
from taskmesh.messages.runs import DoneRun, Failed

MAX_DELIVERY = 4 << 20
"""Bytes after which a delivery is closed and the next begins."""
RESEND_AFTER = 2.0
"""Seconds without progress after which unacknowledged deliveries are sent again."""

WORKER = "worker:"
"""Prefix of users whose key is a pool's: tasks that it runs submit tasks with it."""


def placed(slot: str) -> tuple[str, int]:
    """Return the pool and process of a task that submits tasks, and its client, 0 if a Hello says none."""
    place, _, client = slot.rpartition("@")
    try:
        return place, int(client, 16)
    except ValueError:
        return slot, 0


class ClientSession:
    """One client: its numbers, its credit, and the outcomes it has not acknowledged.

    Args:
        client: The client's id.
        epoch: The hub's epoch.
        now: The time.
        user: User whose key the client shows, empty where no keys are in use.

    Attributes:
        client: As given.
        user: As given.
        name: Name of the program, for people.
        python: Its version of Python.
        slot: Pool and process of a task that submits tasks; else empty.
        parent: Client of that task, 0 if it does not say.
        is_operator: True if it is a command that asks and steers.
        warning: Versions in which it differs from the hub, in words, or empty.
        credit: Bytes of deliveries that it holds unacknowledged; 0 if it is embedded.
        submitted: Number of the last Submit that is in the ledger.
        specs: Numbers of the specs of its tasks, since it was last silent without any.
        unwritten: Submits in the ledger that the journal does not have yet, with the numbers of its changes.
        held: outcomes that it may have once the journal has the changes of these numbers.
        heard: Time when it was last heard of.
        ended: Time when the last of its tasks ended.
        present: True if it was heard and has not vanished.
        linked: True if its link was not seen to be gone.
        lost: True if it was silent for so long that what is bound to it has been cancelled.
        size: Bytes of outcomes kept for it, unless it is embedded.
        unsplit: Chunks that crashed, by counter, until it has acknowledged that it has to split them.
    """

    def __init__(self, client: int, epoch: int, now: float, user: str = "") -> None:
        self.client = client
        self.user = user
        self.name = ""
        self.python = ""
        self.slot = ""
        self.parent = 0
        self.is_operator = False
        self.warning = ""
        self.credit = 0
        self.submitted = 0
        self.specs: set[int] = set()
        self.unwritten: deque[tuple[int, int]] = deque()
        self.held: list[tuple[int, DoneRun | Failed]] = []
        self.heard = self.ended = now
        self.present = True
        self.linked = True
        self.number = 0
        self.lost = False
        self.size = 0
        self.unsplit: dict[int, TaskRecord] = {}
        self._epoch = epoch
        self._deliveries: SendWindow[Deliver] = SendWindow()
        self._done: list[DoneRun] = []
        self._failed: list[Failed] = []

    def hear(self, now: float) -> None:
        """Note that the client is there, and knows this session."""
        self.heard = now
        self.present = True
        self.lost = False

    def submit(self, submit: Submit) -> None:
        """Note a Submit that is in the ledger."""
        self.submitted = submit.number
        self.specs.update([run.spec for run in submit.runs])

    @property
    def accepted(self) -> int:
        """Number of the last Submit that the client may believe to be accepted."""
        return self.unwritten[0][0] - 1 if self.unwritten else self.submitted

    @property
    def has_news(self) -> bool:
        """True if outcomes wait that were never sent."""
        return bool(self._done or self._failed or self.held)

    @property
    def has_outcomes(self) -> bool:
        """True if there are outcomes that the client may not have."""
        return bool(self._done or self._failed or self.held or self._deliveries.kept)

    def add(self, outcome: DoneRun | Failed, after: int = 0) -> int:
        """Keep outcomes for the next delivery; return how many bytes they are counted for.

        The bad end of a dependent does not come before that of its cause.

        Args:
            outcome: results of one slot, or a bad end.
            after: the number of the journal's changes that they wait for.
        """
        if isinstance(outcome, Failed) and outcome.kind == "dependency" and self.held:
            after = max(after, *[number for number, _ in self.held])
        if after:
            self.held.append((after, outcome))
        else:
            self._make_ready(outcome)
        if not self.credit:
            return 0
        size = size_of_failure(outcome) if isinstance(outcome, Failed) else size_of(outcome)
        self.size += size
        return size

    def _make_ready(self, outcome: DoneRun | Failed) -> None:
        if isinstance(outcome, Failed):
            self._failed.append(outcome)
        else:
            self._done.append(outcome)

    def written(self, number: int) -> bool:
        """The journal has the changes up to a number; return True if the client waits for more of them."""
        while self.unwritten and self.unwritten[0][1] <= number:
            self.unwritten.popleft()
        held, self.held = self.held, []
        for after, outcome in held:
            if after > number:
                self.held.append((after, outcome))
            else:
                self._make_ready(outcome)
        return bool(self.unwritten or self.held)

    def deliveries(self, now: float) -> list[SendClient]:
        """Return what may be sent now: everything to an embedded client, else as far as the credit goes."""
        if not (self.present and (self._done or self._failed)):
            return []
        window = self._deliveries
        if self.credit == 0:
            message = Deliver(self._epoch, window.next, self._done, self._failed, self.accepted)
            window.restart(window.next + 1)  # nothing can be lost
            self._done, self._failed = [], []
            return [SendClient(self.client, message)]
        sends = []
        while window.size < self.credit and (self._done or self._failed):
            message, size = self._next(window.next)
            window.append(message, size, now, sent=True)
            sends.append(SendClient(self.client, message))
        return sends

    def acknowledged(self, number: int, now: float) -> list[Deliver]:
        """Drop every delivery up to a number, and return them: the client has them."""
        window = self._deliveries
        before = window.size
        taken = window.acknowledge(number, now)
        self.size -= before - window.size
        for message in taken if self.unsplit else ():
            for failure in message.failed:
                self.unsplit.pop(failure.seq, None)
        return taken

    @property
    def ready(self) -> tuple[list[DoneRun], list[Failed]]:
        """Outcomes that were never sent, and wait for nothing but the client."""
        return self._done, self._failed

    def outcomes(self) -> Iterator[tuple[list[DoneRun], list[Failed]]]:
        """Yield all outcomes that the client may not have."""
        yield self._done, self._failed
        yield [held for _, held in self.held if isinstance(held, DoneRun)], []
        yield [], [held for _, held in self.held if isinstance(held, Failed)]
        for message in self._deliveries.kept.values():
            yield message.done, message.failed

    def unacknowledged(self, seqs: Collection[int]) -> list[tuple[DoneRun | Failed, int]]:
        """Return those outcomes of these tasks that the client may not have yet, each with its counter."""
        kept = list(self.outcomes())
        done = [run for runs, _ in kept for run in runs]
        failed = [failure for _, failures in kept for failure in failures]
        found: list[tuple[DoneRun | Failed, int]] = [
            (run.part([index]), seq) for run in done for index, seq in enumerate(run.seqs) if seq in seqs
        ]
        return found + [(failure, failure.seq) for failure in failed if failure.seq in seqs]

    def again(self, now: float) -> list[SendClient]:
        """Return every delivery sent and not acknowledged, to send once more."""
        self._deliveries.repeat(now)
        return [SendClient(self.client, message) for message in self._deliveries.send()]

    @property
    def resend_deadline(self) -> float:
        """Time when unacknowledged deliveries are sent again; infinite if there are none."""
        return self._deliveries.deadline(RESEND_AFTER) if self.present else math.inf

    def _next(self, number: int) -> tuple[Deliver, int]:
        """Return the next delivery, of about MAX_DELIVERY bytes, and its size."""
        size = taken = 0
        for run in self._done:
            taken += 1
            size += size_of(run)
            if size > MAX_DELIVERY:
                break
        done, self._done = self._done[:taken], self._done[taken:]
        failed: list[Failed] = []
        if not self._done:
            for failure in self._failed:
                failed.append(failure)
                size += size_of_failure(failure)
                if size > MAX_DELIVERY:
                    break
            self._failed = self._failed[len(failed) :]
        return Deliver(self._epoch, number, done, failed, self.accepted), size
