"""The figures of a reliable link that both of its ends count by: sizes, and the time that bytes take."""

from __future__ import annotations

from taskmesh.wire.messages import Deliver
from taskmesh.wire.runs import DoneRun, Failed

SLOWEST = 100_000
"""Bytes a second that a link moves at least, not quite 1 Mbit/s: a large message under way is not lost."""

DOUBLINGS = 5
"""Doublings that the wait for its bytes may have: some links are slower, 8 MiB in a minute, and say nothing
else meanwhile. Small ones may be repeated soon."""


def size_of(run: DoneRun) -> int:
    """Bytes that a run of successes is counted for."""
    return sum(map(len, run.payloads)) + 32 * len(run.seqs)


def size_of_failure(failure: Failed) -> int:
    """Bytes that a bad end is counted for."""
    return len(failure.pickled) + len(failure.traceback) + 200


def size_of_delivery(deliver: Deliver) -> int:
    """Bytes that a delivery is counted for, of the client's credit."""
    return sum(map(size_of, deliver.done)) + sum(map(size_of_failure, deliver.failed))


ACK_DELAY = 0.005
"""Seconds that an acknowledgement waits for something to go with: a message of its own wakes four threads."""
