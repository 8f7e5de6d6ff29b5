"""Identities: task, client, session, epoch, spec.

A task id is 128 bits: the client's id (64 random bits, new for every client session) and a counter that the
client counts up. In memory it is one int; on the wire a batch carries the client once and counters.
A spec's number is a digest of its bytes, the same for every client, hub, pool and slot.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NewType

import msgspec

from taskmesh.wire.runs import Spec

TaskId = NewType("TaskId", int)
ClientId = NewType("ClientId", int)
Session = NewType("Session", int)
Epoch = NewType("Epoch", int)

SEQ_BITS = 64
SEQ_MASK = (1 << SEQ_BITS) - 1


def task_id(client: int, seq: int) -> TaskId:
    """The task id of a client's `seq`-th submission."""
    return TaskId(client << SEQ_BITS | seq)


def client_of(task: int) -> ClientId:
    """The client's half of a task id."""
    return ClientId(task >> SEQ_BITS)


def seq_of(task: int) -> int:
    """The counter's half of a task id."""
    return task & SEQ_MASK


def text_of(task: int) -> str:
    """A task id as people see it: 32 hexadecimal digits."""
    return f"{task:032x}"


def parse(text: str) -> TaskId:
    """Reads `text_of`'s form back.

    Raises:
        ValueError: the text is not 32 hexadecimal digits.
    """
    if len(text) != 32:
        raise ValueError(f"a task id has 32 hexadecimal digits, not {len(text)}: {text!r}")
    return TaskId(int(text, 16))


_PACK = msgspec.msgpack.Encoder()
_LATER: Final = tuple(
    field.default for field in msgspec.structs.fields(Spec) if field.name in {"keep", "shared"}
)
"""Defaults of the fields at the end that the first versions did not have."""


def spec_bytes(spec: Spec) -> bytes:
    """Returns the bytes that a spec's number and signatures are made of.

    They are the same in every version that has the spec's fields.
    """
    values = list(msgspec.structs.astuple(spec))
    if tuple(values[-len(_LATER) :]) == _LATER:
        del values[-len(_LATER) :]
    return _PACK.encode(values)


def spec_number(spec: Spec) -> int:
    """Returns the 63 bits that stand for a spec wherever it is known."""
    return int.from_bytes(blake2b(spec_bytes(spec), digest_size=8).digest(), "big") >> 1
