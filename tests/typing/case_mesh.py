"""What a mesh, its maps and its executors give."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import assert_type

from taskmesh import Mesh, MeshExecutor, TaskFuture, task


@task
def length(text: str) -> int:
    return len(text)


def add(a: int, b: float = 1.0) -> float:
    return a + b


def three(a: int, b: str, c: bytes) -> bytes:
    return c * a + b.encode()


def submissions() -> None:
    with Mesh(workers=2) as mesh:
        assert_type(mesh, Mesh)
        assert_type([mesh.submit(len, "abc")], list[TaskFuture[int]])
        assert_type([mesh.submit(length, "abc")], list[TaskFuture[int]])
        assert_type([mesh.submit(add, 1, b=2.0)], list[TaskFuture[float]])
        text = "1"
        str(mesh.submit(add, text))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownArgumentType]
        assert_type([mesh.with_options(queue="q", priority=1).submit(add, 1)], list[TaskFuture[float]])
        mesh.with_options(queu="q")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        assert_type([mesh.put(1)], list[TaskFuture[int]])
        assert_type([mesh.cancel(mesh.submit(add, 1))], list[int])


def maps(mesh: Mesh, paths: list[str]) -> None:
    assert_type(mesh.map(len, paths, chunksize="auto"), Iterator[int])
    assert_type(mesh.map(length, paths, buffersize=10, ordered=False), Iterator[int])
    assert_type(mesh.map(add, [1], [2.0], timeout=1), Iterator[float])
    assert_type(mesh.map(add, [1]), Iterator[float])
    assert_type(mesh.map(three, [1], ["b"], [b"c"]), Iterator[bytes])
    assert_type(mesh.map(len, paths, return_exceptions=True), Iterator[int | BaseException])
    assert_type(mesh.starmap(add, [(1, 2.0)], chunksize=10), Iterator[float])
    mesh.map(length, [1, 2])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mesh.map(add, ["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mesh.map(len, paths, chunksize="big")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def statuses(mesh: Mesh) -> None:
    found = mesh.status()
    assert_type(found["verdicts"], list[str])
    assert_type(found["queues"][0]["waiting"], int)
    assert_type(found["functions"][0]["run"]["p95"], float | None)
    if found["journal"] is not None:
        assert_type(found["journal"]["lag"], float)
    found["queue"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    found["journal"]["lag"]  # type: ignore[index]  # pyright: ignore[reportOptionalSubscript]


def executors(mesh: Mesh) -> None:
    executor: Executor = mesh.executor(queue="q")
    future: Future[int] = executor.submit(len, "abc")
    assert_type(future.result(), int)
    with MeshExecutor(max_workers=4) as own:
        assert_type([own.submit(len, "abc")], list[TaskFuture[int]])
        assert_type(own.map(len, ["a"]), Iterator[int])


async def async_mesh() -> None:
    async with Mesh("tcp://127.0.0.1:5550") as mesh:
        futures = [mesh.submit(length, text) for text in ("a", "b")]
        assert_type(await asyncio.gather(*futures), list[int])
        assert_type([each async for each in mesh.amap(length, ["a"], ordered=False)], list[int])
        assert_type([each async for each in mesh.amap(add, [1], [2.0])], list[float])
        loop = asyncio.get_running_loop()
        assert_type(await loop.run_in_executor(mesh.executor(), len, "abc"), int)
