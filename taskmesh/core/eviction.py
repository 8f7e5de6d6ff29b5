"""Eviction of specs: hub, pool and slot keep the newest, and those in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def evicted(
    sizes: Mapping[int, int], is_needed: Callable[[int], object], *, most: int, most_bytes: int
) -> list[int]:
    """Returns the specs to evict: the oldest beyond the bounds. Needed ones stay, even if too many do.

    Args:
        sizes: bytes by spec number, oldest first.
        is_needed: tells whether a task of a spec is here.
        most: specs that may stay.
        most_bytes: bytes that they may have together.
    """
    count, size = len(sizes), sum(sizes.values())
    gone: list[int] = []
    for number, own in sizes.items():
        if count <= most and size <= most_bytes:
            break
        if not is_needed(number):
            gone.append(number)
            count -= 1
            size -= own
    return gone
