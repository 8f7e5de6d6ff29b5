"""The port of a mesh: the protocols by which the client surface and the network layer meet.

A mesh owns one `SubmitPort` (an embedded hub, or the gateway of a remote one) and hands it one `OutcomeSink`
(its pending table). Two threads meet here, the caller's and the port's loop:

- The caller queues a task in the sink and then looks at `port.sleeping`; when that is true it sets it to
  false and calls `port.wake()`. The loop, before it blocks, sets `sleeping = True`, looks at `sink.queued`
  once more, and only then blocks; awake again it sets `sleeping = False`. In this order no task is
  overlooked, and a caller that goes on submitting wakes the loop once: every further call would give the GIL
  away, and tasks submitted meanwhile would travel one by one.
- The loop calls `sink.drain()` whenever it is awake, and the sink's other methods with whole batches.
  None of them blocks, runs user code or unpickles anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from taskmesh.wire import messages as m
from taskmesh.wire.runs import DoneRun, Failed, Progress, Run, Spec, Value


class SubmitPort(Protocol):
    """The link from one client to its hub. Every method but `forked` may be called from any thread.

    Attributes:
        client: the client id (64 random bits), fixed at construction.
        sleeping: True while the loop blocks, or is about to: after queueing a task `wake()` must be called.
    """

    client: int
    sleeping: bool

    def start(self, timeout: float) -> None:
        """Open the link; return when the hub has welcomed the client.

        Raises:
            HubUnreachable: no hub answered within `timeout` seconds.
            ConfigError: the settings cannot be used.
        """
        ...

    @property
    def connected(self) -> bool:
        """True if the hub answers, as far as is known."""
        ...

    def wake(self) -> None:
        """Make a sleeping loop drain the sink; cheap, never blocks, harmless at any time."""
        ...

    def cancel(self, seqs: Sequence[int], *, unstarted: bool = False) -> None:
        """Cancel tasks. The loop drains the sink before it passes this on, so the hub knows the tasks.

        With `unstarted` only tasks that have not started are cancelled; the sink gets their outcomes.
        """
        ...

    def query(self, what: str, argument: str = "", limit: int = 100, timeout: float = 5.0) -> object:
        """Ask the hub for a view ("status", "pools", "tasks", "task", "events"); return plain data.

        Raises:
            HubUnreachable: no answer within `timeout` seconds.
            TaskMeshError: the hub's refusal.
        """
        ...

    def command(self, verb: str, target: str, timeout: float = 5.0) -> object:
        """Send an operator's command (wire.messages.Command lists them); raises as `query` does."""
        ...

    def fulfil(self, fulfil: m.Fulfil, timeout: float) -> bool:
        """End the promise of a key; return True if nobody has done so before. Raises as `query` does."""
        ...

    def fulfil_later(self, fulfil: m.Fulfil) -> None:
        """End the promise of a key, and wait for no answer; it is repeated over each link until one comes."""
        ...

    def close(self, *, cancel: bool, timeout: float) -> None:
        """End the link and everything that the port started; return within `timeout` seconds or so.

        With `cancel` the hub drops this client's tasks and kills its running ones; without, all have ended
        (the mesh has waited for that). May be called twice; never called from the port's own thread.
        """
        ...

    def forked(self) -> None:
        """Close the port's descriptors in a forked child; touch no lock, thread or peer."""
        ...


class OutcomeSink(Protocol):
    """The client's pending table, from which a port takes tasks, and to which it brings outcomes."""

    @property
    def queued(self) -> bool:
        """True if tasks wait for `drain()`."""
        ...

    def drain(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Take the tasks submitted since the last drain, with the specs that are new in them."""
        ...

    def pending_runs(self, seqs: Sequence[int] | None = None) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Rebuild unfinished tasks (the given ones, or all drained ones), `again=True`, with their specs."""
        ...

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        """Return the outcomes of those of these tasks that have ended and that pending tasks depend on."""
        ...

    def accepted(self, seqs: Sequence[int]) -> None:
        """Take note that these tasks are in the hub's ledger. Repeats are harmless."""
        ...

    def resolve(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """Resolve tasks that have ended; skip tasks that are unknown, cancelled or resolved already."""
        ...

    def notice(self, progress: list[Progress]) -> None:
        """Take in news of running tasks."""
        ...

    def broken(self, error: BaseException) -> None:
        """Fail every pending future, and every later submit, with `error`: the port cannot go on."""
        ...
