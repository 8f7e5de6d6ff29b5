"""What fields of messages may hold beyond their type: decoders refuse the rest."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

TOKEN = 16
"""Bytes of a pool's token, the first frame of all that it says."""


LONGEST_NAME = 1024
"""Characters of a name: of a task, queue, tag, key, pool, client or host."""
MOST_NAMES = 1000
"""Queues or tags of one pool or task."""
LARGEST = (2.0 - 2.0**-52) * 2.0**1023
"""The largest number that is finite."""

Counter = Annotated[int, Meta(ge=0)]
"""A task's number with its client: half of a task id, and a negative one would reach into the other half."""
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""A finite one: a NaN would spoil the order of every queue of times that it gets into."""
Amount = int | Number
"""Whole numbers stay whole."""
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
"""What the hub keeps for as long as its owner is there."""
Names = Annotated[list[Name], Meta(max_length=MOST_NAMES)]
"""Queues or tags."""
