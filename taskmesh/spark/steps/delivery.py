"""The part of a stream that a batch is, by which a sink recognises a repeated delivery."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Self

import msgspec

_METADATA: Final = b"taskmesh.delivery"


@dataclasses.dataclass(frozen=True)
class Delivery:
    """The origin of rows. A stream delivers every batch at least once, so a sink remembers what it has seen.

    (query, batch) are the same when Spark does a micro-batch again. Its partitions need not be cut the same
    way then: to write each row once, a sink needs a key of the rows' own beside these two.

    Attributes:
        query: the stream's id, the same after a restart from its checkpoint. batch: Spark's number.
        partition: in the micro-batch. first: the batch's first row in the partition.
    """

    query: str
    batch: int
    partition: int
    first: int

    @classmethod
    def of(cls, schema: Any) -> Self:
        """The delivery that a batch's schema tells of."""
        return cls(**msgspec.json.decode(schema.metadata[_METADATA]))

    def noted(self, schema: Any) -> Any:
        """The schema with this delivery on it."""
        return schema.with_metadata({_METADATA: msgspec.json.encode(self)})
