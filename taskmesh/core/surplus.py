"""What is forgotten first where specs are too many: hub, pool and slot keep the newest, and those in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def surplus(
    sizes: Mapping[int, int], is_needed: Callable[[int], object], *, most: int, most_bytes: int
) -> list[int]:
    """The oldest specs beyond the bounds, but for those that are needed, which may leave too many.

    Args:
        sizes: bytes by spec number, oldest first. is_needed: whether a task's spec is among them.
        most, most_bytes: how many may stay, and with how many bytes together.
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
