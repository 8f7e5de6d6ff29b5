"""The hub machine's settings, and the versions that must be equal for values to travel between processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

WARN, REFUSE = "warn", "refuse"
KEPT_BYTES = 1 << 30
"""Bytes of outcomes that are kept for people who ask later, by default."""
FEW_POOLS = 200
"""Pools beyond which one that comes beats more rarely, in proportion to how many there are."""


class HasVersions(Protocol):
    """The versions that a Hello states."""

    python: str
    pickle: int
    cloudpickle: str


@dataclass(frozen=True, slots=True)
class Versions:
    """Of this process. An empty text, or 0, is not known and not compared.

    Attributes:
        python: as 3.11.7; compared as far as 3.11: functions by value carry bytecode.
        pickle: the protocol that payloads are written in.
        cloudpickle: of the same release only, says its own documentation.
    """

    python: str = ""
    pickle: int = 0
    cloudpickle: str = ""


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Times in seconds, sizes in bytes.

    Attributes:
        epoch: rises with every start of a hub. beat: between a pool's beats.
        lease: silence that ends a session. silent_beats: silence after which a pool gets no new work.
        links_grace: how long a pool whose links closed has to say Hello.
        client_grace: silence after which a client's on_client_loss="cancel" tasks are cancelled, if its link
            is gone; client_silence: the same while the link stands.
        result_ttl: how long an absent client's outcomes are kept; result_bytes: how much of them.
        max_pools, max_clients: sessions at a time. max_payload: bytes of one call or result, 0 for any.
        max_bytes: of tasks' payloads; kept_bytes: of outcomes that later submissions are answered with;
            arriving_bytes: of what clients have under way to here together, about; 0 for any number.
        versions: this hub's own; policy: what becomes of those who have others, WARN or REFUSE.
        journaled: there is a journal: WriteJournal actions tell what is to go there.
        crash_limit, oom_limit, pool_loss_limit: how often a task may crash, be killed for memory, and be at a
            pool that dies, before it is given up.
        first: no hub was here before: it is part of the client's process, and ends with all that it has.
        stall: a gap in the hub's own time above this extends every lease by the gap.
    """

    epoch: int
    beat: float = 1.0
    lease: float = 10.0
    links_grace: float = 1.0
    silent_beats: float = 2.5
    client_grace: float = 5.0
    client_silence: float = 60.0
    result_ttl: float = 3600.0
    result_bytes: int = 1 << 30
    stall: float = 1.0
    crash_limit: int = 3
    oom_limit: int = 3
    pool_loss_limit: int = 5
    max_tasks: int = 4_000_000
    max_bytes: int = 8 << 30
    client_max_tasks: int = 2_000_000
    client_max_bytes: int = 4 << 30
    spec_bytes: int = 256 << 20
    kept_bytes: int = KEPT_BYTES
    arriving_bytes: int = 0
    max_pools: int = 1_000
    max_clients: int = 10_000
    max_payload: int = 0
    versions: Versions = field(default_factory=Versions)
    policy: str = WARN
    journaled: bool = False
    first: bool = False

    def beat_of(self, pools: int) -> float:
        """Return the seconds between beats of the last one of so many pools; a lease has four of them."""
        return max(self.beat, min(self.beat * pools / FEW_POOLS, self.lease / 4))


def difference(ours: Versions, theirs: HasVersions) -> str:
    """Describe the versions that differ and what to do about it; empty if none does."""
    found = [
        f"{name} {other} where the hub has {mine}"
        for name, mine, other in (
            ("Python", minor(ours.python), minor(theirs.python)),
            ("pickle protocol", str(ours.pickle or ""), str(theirs.pickle or "")),
            ("cloudpickle", ours.cloudpickle, theirs.cloudpickle),
        )
        if mine and other and mine != other
    ]
    if not found:
        return ""
    return f"it has {', '.join(found)}: run the same versions everywhere (hub.versions = {WARN} lets it in)"


def minor(python: str) -> str:
    """3.11 for 3.11.7."""
    return ".".join(python.split(".")[:2])
