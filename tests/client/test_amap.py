"""Maps in a coroutine: the event loop goes on, errors stand in their places, cancelling cancels the rest."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskmesh import Mesh
from tests.harness.waiting import wait_until

WAIT_S = 30


def invert(number: int) -> float:
    return 1 / number


def stop(number: int) -> int:
    raise StopAsyncIteration(number)


async def some(results: AsyncIterator[object], errors: list[BaseException]) -> list[object]:
    """All results; errors of items go into the list."""
    found = []
    while True:
        try:
            found.append(await anext(results))
        except StopAsyncIteration:
            return found
        except ArithmeticError as error:
            errors.append(error)


def test_results_come_in_order_and_errors_in_their_places(mesh):
    async def main():
        errors = []
        found = await some(mesh.amap(invert, [1, 2, 0, 4], chunksize=3), errors)
        return found, errors

    found, errors = asyncio.run(main())

    assert found == [1.0, 0.5, 0.25]
    assert [type(error) for error in errors] == [ZeroDivisionError]


def test_errors_are_results_where_they_are_asked_for(mesh):
    async def main():
        return [each async for each in mesh.amap(invert, [1, 0, 2], return_exceptions=True)]

    one, error, half = asyncio.run(main())

    assert (one, half) == (1.0, 0.5)
    assert isinstance(error, ZeroDivisionError)


def test_an_error_that_would_end_the_loop_is_told(mesh):
    async def main():
        return [each async for each in mesh.amap(stop, [1])]

    with pytest.raises(RuntimeError, match="StopAsyncIteration"):
        asyncio.run(main())


@pytest.mark.usefixtures("processes")
def test_a_map_in_a_coroutine_leaves_the_event_loop_alone(tmp_path):
    """A 0.3 s map stopped it: 0 ticks of 50 ms."""
    ticks, asked, gate = 0, asyncio.Event(), tmp_path / "gate"

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.wait([asyncio.Future()], timeout=0.01)
            ticks += asked.is_set()
            if ticks >= 5:
                gate.touch()

    async def main():
        ticking = asyncio.create_task(tick())
        async with Mesh(workers=1, config={}) as mesh:
            found = [each async for each in mesh.amap(pow, [0.3], [2])]
            asked.set()
            [_ async for _ in mesh.amap(_held, [str(gate)])]
        ticking.cancel()
        return found

    found = asyncio.run(main())

    assert found == [0.3**2]
    assert ticks >= 5


def _stay(_item: int) -> None:
    threading.Event().wait()


def _held(gate: str) -> None:
    wait_until(Path(gate).exists, WAIT_S)


@pytest.mark.usefixtures("processes")
def test_cancelling_the_wait_cancels_the_rest_of_the_map():
    async def main():
        async with Mesh(workers=1, config={}) as mesh:
            waiting = asyncio.create_task(anext(mesh.amap(_stay, range(3))))
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, wait_until, lambda: mesh.status()["tasks"]["running"])
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await loop.run_in_executor(None, wait_until, lambda: not mesh._client.table.unended)

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_outside_an_event_loop_and_from_two_tasks_it_is_refused(mesh):
    async def both():
        results = mesh.amap(abs, [1, 2], chunksize=1)
        return await asyncio.gather(anext(results), anext(results), return_exceptions=True)

    coroutine = anext(mesh.amap(abs, [1])).__await__()
    with pytest.raises(RuntimeError, match="event loop"):
        next(coroutine)
    assert [type(each) for each in asyncio.run(both())] == [int, RuntimeError]
