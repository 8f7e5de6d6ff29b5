"""A sample of every message, made from the structs themselves: a field that is added is covered at once."""

import os
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from taskmesh.messages import frames
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DONE
from taskmesh.messages.slot_messages import FromSlot, SlotProgress, SlotTasks
from taskmesh.serialize.payload import loads_chunk_values
from taskmesh.shm.blob import MEMFD_FROM, PRIVATE, READONLY, Blob

DIRECTIONS = {
    "from_client": (frames.from_client, m.ClientMessage),
    "to_client": (frames.to_client, m.ToClient),
    "from_pool": (frames.from_pool, m.PoolMessage),
    "to_pool": (frames.to_pool, m.ToPool),
    "to_slot": (frames.to_slot, SlotTasks),
    "from_slot": (frames.from_slot, FromSlot),
}


def blob_of(*sizes):
    """A Blob with parts of these sizes."""
    parts = [os.urandom(size) for size in sizes]
    return Blob.from_parts(parts, [READONLY if i % 2 else PRIVATE for i in range(len(parts) - 1)])


def packed(fill, size=MEMFD_FROM):
    """A payload of two parts, the second full of this byte, in a file of its own."""
    return Blob.pack([b"p" * 100, bytes([fill]) * size], [PRIVATE])


def send(made):
    """The Blob that arrives when `made` is sent to another process."""
    _, [one] = frames.encode_local(SlotProgress(1, 0, made))
    return Blob.from_fd(os.dup(one.to_fd()), one.layout)


def items_of(payload):
    """(True, value) or (False, SlotFailure) for each item of a chunk's outcome, in order."""
    values, failures = loads_chunk_values(payload, what="a result")
    return [(False, failures[i]) if i in failures else (True, value) for i, value in enumerate(values)]


def sample(kind, payloads=(b"a", b"b")):
    """A value of a message's field type; structs get `payloads` and as many seqs."""
    match kind:
        case type() if issubclass(kind, msgspec.Struct):
            return _struct(kind, payloads)
        case _ if get_origin(kind) is Annotated:
            return sample(get_args(kind)[0], payloads)
        case _ if get_origin(kind) is list:
            return [sample(get_args(kind)[0], payloads), sample(get_args(kind)[0], payloads)]
        case _ if get_origin(kind) is tuple:
            members = [member for member in get_args(kind) if member is not ...]
            return tuple(sample(member, payloads) for member in members)
        case _ if get_origin(kind) in (Union, UnionType):
            return sample(get_args(kind)[0], payloads)
        case _ if kind is Any:
            return {"pools": [{"id": "a", "n": [1, None, 2.5]}]}
    return {int: 7, float: 0.5, str: "text", bytes: b"bytes", bool: True}[kind]


def _struct(kind, payloads):
    fields = {field.name: sample(field.type, payloads) for field in msgspec.structs.fields(kind)}
    if "payloads" in fields:
        fields["payloads"] = list(payloads)
    if "payload" in fields:
        fields["payload"] = payloads[-1]
    for edges in {"needs", "after"} & fields.keys():
        fields[edges] = [[0]] * len(payloads)
    if "when" in fields:
        fields["when"] = DONE
    if "payloads" in fields and "seqs" in fields:
        fields["seqs"] = list(range(1, len(payloads) + 1))
        if "key" in fields and len(payloads) > 1:
            fields["key"] = ""
    return kind(**fields)


def messages(direction):
    """(decoder, message) for every message of a direction, those with payloads also with Blobs among them."""
    decoder, union = DIRECTIONS[direction]
    for kind in get_args(union) or (union,):
        message = sample(kind)
        yield decoder, message
        if "payloads" in repr(message):
            yield decoder, sample(kind, (b"a", blob_of(70_000, 66_000), b"c", blob_of(9)))


MESSAGES = [pair for direction in DIRECTIONS for pair in messages(direction)]
