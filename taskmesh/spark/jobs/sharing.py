"""What executions of one Spark partition share on the mesh: remembered failures; by option results too."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

from taskmesh.serialize.payload import Payload
from taskmesh.shm.blob import Blob
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.trace import Trace

KEPT_S: Final = 600.0
"""Seconds for which the hub keeps what pieces ended with."""


@dataclass(frozen=True)
class Sharing:
    """Under which key a piece is submitted.

    Results are shared by content alone, and only where the settings say so: a Spark task that is tried again,
    or has a twin, gets them from the hub. Failures are remembered within a partition of one stage, once
    `remember_errors` tries of Spark's have failed: before that, the next try may go better; without it, Spark
    would have the same rows fail four times before it gives a job up.

    Attributes:
        shared: as in `Spec`. prefix: of the keys.
    """

    shared: str
    prefix: str

    @classmethod
    def of(cls, settings: Settings, trace: Trace) -> Self | None:
        """As the settings say; None if this try shares nothing."""
        if settings.dedupe == "result":
            return cls("all", "")
        if not 0 < settings.remember_errors <= trace.attempt + 1:
            return None
        return cls("errors", f"{trace.app} {trace.stage} {trace.partition} ")

    def key(self, number: int, payload: Payload) -> str:
        """The key of a payload under a spec."""
        made = hashlib.blake2b(digest_size=20) if self.shared == "all" else _quick()
        for part in payload.parts if isinstance(payload, Blob) else (payload,):
            made.update(part)
        return f"{self.prefix}{number:x} {made.hexdigest()}"


def _quick() -> hashlib._Hash:
    """Twice as fast, and good enough to find the rows of one partition again."""
    return hashlib.sha1(usedforsecurity=False)
