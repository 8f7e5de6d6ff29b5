"""Coroutine functions for slots; apart, since a slot that runs none must not load asyncio."""

import asyncio


async def coroutine(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


async def endless() -> None:
    await asyncio.Event().wait()
