"""Coroutine functions for slots; apart, since a slot that runs none must not load asyncio."""

import asyncio


async def coroutine(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


_lock = asyncio.Lock()


async def use_what_is_kept() -> int:
    """Waits in what belongs to one loop; returns a number of that loop."""

    async def hold() -> None:
        async with _lock:
            await asyncio.sleep(0)

    await asyncio.gather(hold(), hold())
    return id(asyncio.get_running_loop())


async def endless() -> None:
    await asyncio.Event().wait()
