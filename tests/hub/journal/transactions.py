"""Transactions whose content follows from their number, so that what is stored tells which of them it is."""

import random

from taskmesh.hub.journal.store import Changes

LIVING = 7
"""A transaction drops what so many transactions before it have put."""


def values(number: int) -> dict[bytes, bytes]:
    """The entries that transaction `number` puts: three small values, and a large one now and then."""
    chance = random.Random(number)
    found = {b"%d/%d" % (number, part): chance.randbytes(chance.randrange(3000)) for part in range(3)}
    if number % 5 == 0:
        found[b"%d/large" % number] = chance.randbytes(100_000)
    return found | {b"latest": b"%d" % number}


def transaction(number: int) -> Changes:
    old = values(number - LIVING).keys() - {b"latest"} if number > LIVING else set()
    return Changes(values(number), set(old))


def expected(number: int) -> dict[bytes, bytes]:
    """The entries that are stored when transaction `number` is the last one."""
    found: dict[bytes, bytes] = {}
    for one in range(max(1, number - LIVING + 1), number + 1):
        found.update(values(one))
    return found
