"""An operator's session with a hub: questions and commands, no tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskmesh.cli.options import Address, ConfigFile, Keys, Timeout, command, hub_settings

if TYPE_CHECKING:
    from taskmesh.config import Config
    from taskmesh.net.client.port import SubmitPort
    from taskmesh.wire.runs import DoneRun, Failed, Progress, Run, Spec, Value

EVERYTHING = 1_000_000
"""Rows to ask a hub for, where all are wanted."""


class NoTasks:
    """The pending table of a session that submits nothing."""

    queued = False
    memfd = False
    unresolved: Collection[int] = ()

    def drain(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        return [], []

    def pending_runs(self, seqs: Sequence[int] | None = None) -> tuple[list[tuple[int, Spec]], list[Run]]:
        return [], []

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        return []

    def calls_of(self, seqs: Iterable[int]) -> tuple[list[tuple[int, Spec]], list[Run]]:
        return [], []

    def accepted(self, seqs: Sequence[int]) -> None:
        """Do nothing: no task was submitted."""

    def resolve(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """Do nothing: no task was submitted."""

    def notice(self, progress: list[Progress]) -> None:
        """Do nothing: no task was submitted."""

    def broken(self, error: BaseException) -> None:
        """Do nothing: the question that waits runs into its time-out."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The hub of a command, and how long to wait for its answer.

    Attributes:
        config: the settings, with the hub's address: as given, as configured, or the default.
        timeout: seconds to wait for an answer.
    """

    config: Config
    timeout: float

    @contextmanager
    def session(self) -> Iterator[SubmitPort]:
        """Open a session with the hub.

        Raises:
            HubUnreachable: it does not answer in time, or does not let us in.
            ConfigError: the address cannot be used, or keys are missing.
        """
        from taskmesh.net.client.remote_port import RemotePort
        from taskmesh.security.keys import OPERATOR

        port = RemotePort(NoTasks(), self.config, role=OPERATOR)
        port.start(self.timeout)
        try:
            yield port
        finally:
            port.close(cancel=True, timeout=2.0)

    def query(self, what: str, argument: str = "", limit: int = EVERYTHING) -> Any:
        """Return a view of the hub.

        Raises:
            TaskMeshError: it has no such thing. Else as `session`.
        """
        with self.session() as hub:
            return hub.query(what, argument, limit, self.timeout)

    def command(self, verb: str, target: str) -> Any:
        """Have the hub carry a command out; return its answer.

        Raises:
            TaskMeshError: it refuses. Else as `session`.
        """
        with self.session() as hub:
            return hub.command(verb, target, self.timeout)


def reach_of(
    *, address: Address = None, timeout: Timeout = 5.0, directory: Keys = None, file: ConfigFile = None
) -> Reach:
    """Return the hub of a command that asks one."""
    return Reach(hub_settings(address=address, directory=directory, file=file), timeout)


hub_command = command(reach_of)
"""The decorator of commands that ask a hub: they take a Reach first."""
