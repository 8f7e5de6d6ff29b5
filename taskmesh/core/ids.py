"""Identities: task, client, session, epoch.

A task id is 128 bits: the client's id (64 random bits, new for every client session) and a counter that the
client counts up. In memory it is one int; on the wire a batch carries the client once and counters.

Sinks, promises and tasks with keys have names, of which each user has his own.
"""

from __future__ import annotations

from hashlib import blake2b
from string import hexdigits
from typing import NewType

TaskId = NewType("TaskId", int)
ClientId = NewType("ClientId", int)
Session = NewType("Session", int)
Epoch = NewType("Epoch", int)

SHARED = "shared:"
"""Names that begin with it are one thing for all users; under any other name each user has one of his own."""
_BETWEEN = "\0"
"""Stands between a user and a name; users are names of files, which have none."""
HEX = frozenset(hexdigits)
SEQ_BITS = 64
SEQ_MASK = (1 << SEQ_BITS) - 1


def task_id(client: int, seq: int) -> TaskId:
    return TaskId(client << SEQ_BITS | seq)


def house_of(epoch: int, user: str = "", number: int = 0) -> ClientId:
    """Return the id of a client that a hub is to itself, whose tasks the firings of schedules are.

    Args:
        epoch: the hub's.
        user: the user whose schedules these are.
        number: how many ids of this user are somebody's already.
    """
    name = f"house {epoch} {number} {user}"
    return ClientId(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big"))


def client_of(task: int) -> ClientId:
    return ClientId(task >> SEQ_BITS)


def seq_of(task: int) -> int:
    return task & SEQ_MASK


def text_of(task: int) -> str:
    """Return a task id as people see it: 32 hexadecimal digits."""
    return f"{task:032x}"


def parse(text: str) -> TaskId:
    """Read `text_of`'s form back.

    Raises:
        ValueError: the text is not 32 hexadecimal digits.
    """
    if len(text) != 32 or not HEX.issuperset(text):
        raise ValueError(f"a task id has 32 hexadecimal digits, unlike {text!r:.200}")
    return TaskId(int(text, 16))


def owned(user: str, name: str) -> str:
    """Return the name under which the hub keeps a user's sink, promise or task with a key."""
    return name if not user or name.startswith(SHARED) else f"{user}{_BETWEEN}{name}"


def plain(name: str) -> str:
    """Return the name as its user says it."""
    return name.partition(_BETWEEN)[2] or name


def user_of(name: str) -> str:
    """Return the user whose sink or promise this is; empty for one of all users."""
    user, _, own = name.partition(_BETWEEN)
    return user if own else ""
