"""Identities: task, client, session, epoch.

A task id is 128 bits: the client's id (64 random bits, new for every client session) and a counter that the
client counts up. In memory it is one int; on the wire a batch carries the client once and counters.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NewType

TaskId = NewType("TaskId", int)
ClientId = NewType("ClientId", int)
Session = NewType("Session", int)
Epoch = NewType("Epoch", int)

SEQ_BITS = 64
SEQ_MASK = (1 << SEQ_BITS) - 1


def task_id(client: int, seq: int) -> TaskId:
    return TaskId(client << SEQ_BITS | seq)


def house_of(epoch: int) -> ClientId:
    """Returns the id of the client that a hub is to itself, whose tasks the firings of schedules are."""
    return ClientId(int.from_bytes(blake2b(b"house %d" % epoch, digest_size=8).digest(), "big"))


def client_of(task: int) -> ClientId:
    return ClientId(task >> SEQ_BITS)


def seq_of(task: int) -> int:
    return task & SEQ_MASK


def text_of(task: int) -> str:
    """Returns a task id as people see it: 32 hexadecimal digits."""
    return f"{task:032x}"


def parse(text: str) -> TaskId:
    """Reads `text_of`'s form back.

    Raises:
        ValueError: the text is not 32 hexadecimal digits.
    """
    if len(text) != 32:
        raise ValueError(f"a task id has 32 hexadecimal digits, not {len(text)}: {text!r}")
    return TaskId(int(text, 16))
