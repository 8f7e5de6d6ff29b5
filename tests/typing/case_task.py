"""A decorated function stays callable with its own type, and submits with it."""

from collections.abc import Coroutine, Iterator
from typing import Any, assert_type

from taskmesh import Mesh, Retry, Task, TaskFuture, as_completed, gather, lazy, task, wait


@task
def parse(path: str, *, depth: int = 1) -> dict[str, int]:
    return {path: depth}


def digits(number: int) -> str:
    return str(number)


@task(retries=Retry(max=3, backoff=0.1), timeout=30, queue="slow", key=digits)
def double(number: int) -> int:
    return 2 * number


@task
async def fetch(url: str) -> bytes:
    return url.encode()


def calls() -> None:
    assert_type(parse("a"), dict[str, int])
    assert_type(double(2), int)
    coroutine: Coroutine[Any, Any, bytes] = fetch("u")
    coroutine.close()
    parse(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    parse("a", width=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    double()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def submissions() -> None:
    future = parse.submit("a", depth=2)
    assert_type([future], list[TaskFuture[dict[str, int]]])
    assert_type(future.result(timeout=1), dict[str, int])
    assert_type(future.progress, tuple[float, float] | None)
    assert_type([double.submit(1)], list[TaskFuture[int]])
    assert_type([fetch.submit("u")], list[TaskFuture[bytes]])
    str(double.submit("1"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    str(parse.submit("a", deep=1))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue, reportUnknownArgumentType]


def chains(mesh: Mesh) -> None:
    assert_type([double.submit(lazy(double.submit(lazy(double.submit(1)))))], list[TaskFuture[int]])
    assert_type([mesh.submit(double, lazy(double.submit(1)))], list[TaskFuture[int]])
    assert_type([mesh.submit(max, [lazy(double.submit(1)), 2])], list[TaskFuture[int]])
    str(double.submit(lazy(parse.submit("a"))))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def options() -> None:
    task(retries="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    task(acks="never")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    task(retry=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def collections_of_futures(mesh: Mesh) -> None:
    futures = [mesh.submit(double, n) for n in range(3)]
    assert_type(futures, list[TaskFuture[int]])
    assert_type(gather(futures), list[int])
    assert_type(gather(futures, return_exceptions=True), list[int | BaseException])
    assert_type(as_completed(mesh.submit(len, p) for p in ["a"]), Iterator[TaskFuture[int]])
    assert_type(wait(futures).done, set[TaskFuture[int]])


async def awaiting(mesh: Mesh) -> None:
    assert_type([await mesh.submit(double, 1)], list[int])
    assert_type([await mesh.asubmit(double, 1)], list[TaskFuture[int]])
    assert_type(await mesh.call(double, 1), int)
    assert_type(await mesh.call(fetch, "u"), bytes)
    assert_type(await mesh.with_options(retries=2).call(len, "ab"), int)
    await mesh.call(double, "1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type([await fetch.submit("u")], list[bytes])


def functions(of: Task[[int], str]) -> None:
    assert_type(of(1), str)
    assert_type([of.submit(1)], list[TaskFuture[str]])
