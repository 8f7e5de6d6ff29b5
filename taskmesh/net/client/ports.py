"""What the client surface, the network layer and a hub's store demand of each other, as Protocols.

A mesh owns one `SubmitPort` (taskmesh.net: embedded hub, or gateway of a remote one) and hands it one
`OutcomeSink` (its pending table). Two threads meet here, the caller's and the port's loop:

- The caller queues a task in the sink and then looks at `port.sleeping`; when that is true it sets it to
  false and calls `port.wake()`. The loop, before it blocks, sets `sleeping = True`, looks at `sink.queued`
  once more, and only then blocks; awake again it sets `sleeping = False`. In this order no task is
  overlooked, and a caller that goes on submitting wakes the loop once: every further call would give the GIL
  away, and what comes meanwhile would travel one by one.
- The loop calls `sink.drain()` whenever it is awake, and the sink's other methods with whole batches.
  None of them blocks, runs user code or unpickles anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from taskmesh.wire.runs import DoneRun, Failed, Progress, Run, Spec


class SubmitPort(Protocol):
    """The way from one client to its hub. Every method but `forked` may be called from any thread."""

    client: int
    """The client id (64 random bits), fixed at construction."""

    sleeping: bool
    """The loop blocks, or is about to: whoever queues something has to call `wake()`."""

    def start(self, timeout: float) -> None:
        """Opens the link and returns when the hub has welcomed the client.

        Raises:
            HubUnreachable: no hub answered within `timeout` seconds.
            ConfigError: the settings cannot be used.
        """
        ...

    @property
    def connected(self) -> bool:
        """Whether the hub answers, as far as is known."""
        ...

    def wake(self) -> None:
        """Makes a sleeping loop drain the sink; cheap, never blocks, harmless at any time."""
        ...

    def cancel(self, seqs: Sequence[int], *, unstarted: bool = False) -> None:
        """Gives tasks up. The loop drains the sink before it passes this on, so the hub knows the tasks.

        With `unstarted` only those that have not started: which these are the sink is told as their outcome.
        """
        ...

    def query(self, what: str, argument: str = "", limit: int = 100, timeout: float = 5.0) -> object:
        """Asks the hub for a view ("status", "pools", "tasks", "task", "events"); plain data.

        Raises:
            HubUnreachable: no answer within `timeout` seconds. TaskMeshError: the hub's refusal.
        """
        ...

    def command(self, verb: str, target: str, timeout: float = 5.0) -> object:
        """An operator's wish (wire.messages.Command lists them); raises as `query` does."""
        ...

    def close(self, *, cancel: bool, timeout: float) -> None:
        """Ends the link and everything that the port started; returns within `timeout` seconds or so.

        With `cancel` the hub drops this client's tasks and kills its running ones; without, all have ended
        (the mesh has waited for that). May be called twice; never called from the port's own thread.
        """
        ...

    def forked(self) -> None:
        """Called in a forked child: closes the port's descriptors there, touches no lock, thread or peer."""
        ...


class OutcomeSink(Protocol):
    """Where a port takes tasks from and brings outcomes to: the client's pending table."""

    @property
    def queued(self) -> bool:
        """Something waits for `drain()`."""
        ...

    def drain(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Takes what has been submitted since the last drain, with the specs that are new in it."""
        ...

    def pending_runs(self, seqs: Sequence[int] | None = None) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Rebuilds unfinished tasks (of those given, or all drained ones), `again=True`, with their specs."""
        ...

    def accepted(self, seqs: Sequence[int]) -> None:
        """These tasks are in the hub's ledger. Repeats are harmless."""
        ...

    def resolve(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """These tasks have ended. Tasks that are unknown, cancelled or resolved already are skipped."""
        ...

    def notice(self, progress: list[Progress]) -> None:
        """News of running tasks."""
        ...

    def broken(self, error: BaseException) -> None:
        """The port cannot go on: every pending future fails with `error`, and so does every later submit."""
        ...
