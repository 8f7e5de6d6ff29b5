"""The queue before the writer: bounded in bytes, in order, the oldest goes first."""

import threading

from taskmesh.stores.write_queue import SMALLEST, WriteQueue, size_of
from tests.stores.outcomes import failure, kept_for, success


def keys(entries) -> list[str]:
    return [entry.kept.key for entry in entries]


def test_entries_come_out_in_order_and_again_until_they_are_settled():
    waiting = WriteQueue(1 << 20)
    assert waiting.put(kept_for(9, *(success(f"{n}") for n in range(5)))) == 0

    assert keys(waiting.take(2, 1 << 20, 0)) == ["0", "1"]
    assert keys(waiting.take(2, 1 << 20, 0)) == ["0", "1"]
    assert (len(waiting), waiting.in_hand) == (5, 2)
    assert waiting.ack() == 2
    assert keys(waiting.take(9, 1, 0)) == ["2"], "one at least, whatever its size"
    waiting.ack()
    assert keys(waiting.take(9, 1 << 20, 0)) == ["3", "4"]
    waiting.ack()

    assert (len(waiting), waiting.size) == (0, 0)
    assert waiting.take(9, 1 << 20, 0) == []


def test_without_room_the_oldest_go_but_not_what_is_in_hand():
    size = size_of(success("0", bytes(1000)))
    waiting = WriteQueue(3 * size)
    waiting.put(kept_for(9, success("0", bytes(1000))))
    assert keys(waiting.take(1, 1, 0)) == ["0"]

    dropped = waiting.put(kept_for(9, *(success(f"{n}", bytes(1000)) for n in range(1, 6))))

    assert dropped == 3
    assert waiting.size == 3 * size
    waiting.ack()
    assert waiting.put(kept_for(9, success("huge", bytes(4000)))) == 1
    assert keys(waiting.take(9, 1 << 20, 0)) == ["4", "5"]


def test_sizes_count_what_takes_memory():
    assert size_of(success("k", bytes(100))) == SMALLEST + 100
    assert size_of(failure("k")) == SMALLEST + len("bad")


def test_a_closed_queue_keeps_nobody_waiting():
    waiting = WriteQueue(100)
    threading.Timer(0.05, waiting.close).start()

    assert waiting.take(1, 1, 30.0) == []
    waiting.pause(30.0)

    assert waiting.closed
