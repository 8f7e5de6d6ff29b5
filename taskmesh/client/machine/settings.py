"""The client machine's settings, and the table of tasks that it asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from taskmesh.messages.mesh_messages import ClientHello
from taskmesh.messages.runs import Failed, Run, Spec, Value


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a client machine. Times are in seconds.

    Attributes:
        client: Id of this session, 64 random bits.
        name: Name of the program, for people.
        slot: Of a session in a slot: its pool and process id, by which the hub hears that it has ended.
        operator: True for a command that asks and steers: it is not counted among the clients.
        python: Version of Python, for the hub to compare.
        cloudpickle: Version of cloudpickle, likewise.
        max_payload: Bytes of a call; what a hub with a lower limit does not take is not sent to it.
        credit: Bytes of deliveries that it takes in unacknowledged; 0 for an embedded client.
        hello: Time between Hellos.
        patience: Silence of the hub after which the client dials again.
        resend: Time after which unacknowledged Submits are sent again.
        question: Time that a query or command may wait for a hub; nobody wants an answer later than that.
    """

    client: int
    name: str = ""
    slot: str = ""
    operator: bool = False
    python: str = ""
    cloudpickle: str = ""
    max_payload: int = 0
    credit: int = 64 << 20
    hello: float = 1.0
    patience: float = 3.0
    resend: float = 2.0
    question: float = 5.0

    def statement(self, epoch: int, first: int, link: int) -> ClientHello:
        """Return the Hello of this client.

        Args:
            epoch: The hub's that it knew, 0 for none.
            first: Number of the next Submit.
            link: Number of the link that the Hello goes over.
        """
        hello = ClientHello(self.client, epoch, first, name=self.name, credit=self.credit)
        hello.python, hello.cloudpickle, hello.link = self.python, self.cloudpickle, link
        hello.slot, hello.operator = self.slot, self.operator
        return hello


class UnresolvedTasks(Protocol):
    """The table of tasks that the program waits for, as the machine sees it."""

    def __bool__(self) -> bool:
        """Return True if any task is unresolved."""

    def pending_runs(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Return every unresolved task that was drained before, to submit again; runs say `again`."""

    def specs_of(self, numbers: Sequence[int]) -> list[tuple[int, Spec]]: ...

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        """Return outcomes of those of these tasks that have ended and that unresolved tasks depend on."""

    def calls_of(self, seqs: Iterable[int]) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Return calls of those of these tasks whose results are ignored, and of such that they need.

        Each comes after those that it depends on; runs say `rerun`.
        """

    def lose_early(self, unsent: Set[int]) -> list[Failed]:
        """Take unresolved at-most-once tasks that a hub may have had out of the table: each is lost."""
