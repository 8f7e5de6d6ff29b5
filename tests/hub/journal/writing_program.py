"""A process that writes transactions to a journal until it is killed, and prints the confirmed ones' numbers.

`python -m tests.hub.journal.writing_program file|redis PATH|URL everysec|strict`
"""

import sys
from itertools import count

from taskmesh.hub.journal.address import JournalAddress
from taskmesh.hub.journal.file import FileJournal
from taskmesh.hub.journal.store import JournalStore
from tests.hub.journal.transactions import transaction


def journal(kind: str, place: str, tier: str) -> JournalStore:
    if kind == "file":
        return FileJournal(place, strict=tier == "strict")
    from taskmesh.hub.journal.redis import RedisJournal

    return RedisJournal(lambda: JournalAddress.of(place), strict=tier == "strict")


def main() -> None:
    store = journal(*sys.argv[1:4])
    for number in count(store.open().number + 1):
        store.write(number, transaction(number))
        print(number, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
