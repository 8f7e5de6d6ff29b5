"""Who is told when a future ends: callbacks in the callback thread, event loops once a batch."""

import asyncio
import sys
import threading

import pytest

from tests.harness.waiting import wait_until

WAIT_S = 10


def double(number):
    return 2 * number


def fail(text):
    raise ValueError(text)


# --- callbacks


def test_callbacks_run_in_order_in_one_thread_that_is_not_the_ports(mesh, port):
    port.gate.clear()
    seen = []
    futures = [mesh.submit(double, i) for i in range(20)]
    for future in futures:
        future.add_done_callback(lambda f: seen.append((f.result(), threading.current_thread().name)))
        future.add_done_callback(lambda f: seen.append((f.result(), threading.current_thread().name)))
    port.release()
    wait_until(lambda: len(seen) == 40)

    assert [value for value, _ in seen] == [2 * (i // 2) for i in range(40)]
    assert {name for _, name in seen} == {"taskmesh-callbacks"}


def test_callback_of_a_done_future_runs_here_and_now(mesh):
    future = mesh.submit(double, 1)
    future.result(WAIT_S)
    seen = []

    future.add_done_callback(lambda f: seen.append(threading.current_thread()))

    assert seen == [threading.current_thread()]


def test_callback_that_submits_and_waits_stalls_nobody(mesh, port):
    port.gate.clear()
    seen = []
    first = mesh.submit(double, 1)
    first.add_done_callback(lambda f: seen.append(mesh.submit(double, f.result()).result(WAIT_S)))
    later = mesh.submit(double, 5)
    later.add_done_callback(lambda f: seen.append(f.result()))
    port.release()

    assert later.result(WAIT_S) == 10
    wait_until(lambda: len(seen) == 2)
    assert seen == [4, 10]


def test_callback_that_raises_is_logged_and_the_next_one_runs(mesh, port, caplog):
    port.gate.clear()
    future = mesh.submit(double, 1)
    seen = []
    future.add_done_callback(lambda f: 1 / 0)
    future.add_done_callback(seen.append)
    port.release()
    wait_until(lambda: seen)

    assert seen == [future]
    assert "exception calling callback" in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_callback_that_would_end_its_thread_is_logged_and_the_next_ones_run(mesh, port, caplog, kind):
    def leave(future):
        raise kind

    port.gate.clear()
    first, second = mesh.submit(double, 1), mesh.submit(double, 2)
    seen = []
    first.add_done_callback(leave)
    first.add_done_callback(seen.append)
    second.add_done_callback(seen.append)
    port.release()
    mesh._client.wait_for_all()

    assert seen == [first, second]
    assert "exception calling callback" in caplog.text


def test_callback_of_a_done_future_may_leave_its_callers_thread(mesh):
    future = mesh.submit(double, 1)
    future.result(WAIT_S)

    with pytest.raises(SystemExit):
        future.add_done_callback(lambda f: sys.exit(3))


def test_callback_added_by_a_callback_runs_after_those_before_it(mesh, port):
    port.gate.clear()
    future = mesh.submit(double, 1)
    seen = []

    def first(f):
        f.add_done_callback(lambda f: seen.append("third"))
        seen.append("first")

    future.add_done_callback(first)
    future.add_done_callback(lambda f: seen.append("second"))
    port.release()
    wait_until(lambda: len(seen) == 3)

    assert seen == ["first", "second", "third"]


# --- asyncio


def test_asyncios_own_wait_is_refused_with_the_cure_and_the_cure_works(mesh):
    async def bare():
        await asyncio.wait([mesh.submit(double, 1)])

    async def wrapped():
        done, _ = await asyncio.wait([asyncio.wrap_future(mesh.submit(double, i)) for i in range(3)])
        return {future.result() for future in done}

    with pytest.raises(TypeError, match=r"asyncio\.wrap_future"):
        asyncio.run(bare())
    assert asyncio.run(wrapped()) == {0, 2, 4}


def test_asyncios_as_completed_takes_futures_as_they_are(mesh):
    async def main():
        return {await each for each in asyncio.as_completed([mesh.submit(double, i) for i in range(3)])}

    assert asyncio.run(main()) == {0, 2, 4}


def test_future_can_be_awaited(mesh):
    async def main():
        assert await mesh.submit(double, 1) == 2
        with pytest.raises(ValueError, match="no"):
            await mesh.submit(fail, "no")
        return await asyncio.gather(*(mesh.submit(double, i) for i in range(100)))

    assert asyncio.run(main()) == [2 * i for i in range(100)]


def test_awaiting_calls_the_loop_once_a_batch(mesh, port):
    calls = []

    async def main():
        loop = asyncio.get_running_loop()
        port.gate.clear()
        real = loop.call_soon_threadsafe
        waiting = [asyncio.ensure_future(_await(mesh.submit(double, i))) for i in range(100)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = lambda *args: (calls.append(args), real(*args))[1]
        await asyncio.to_thread(lambda: wait_until(lambda: len(port.runs) and not mesh._client.table.queued))
        calls.clear()
        port.max_batch = 1000
        port.release()
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == [2 * i for i in range(100)]
    assert len([args for args in calls if args[0].__name__ == "_set_all"]) == 1


async def _await(future):
    return await future


def test_cancelled_await_cancels_the_task(mesh, port):
    port.gate.clear()

    async def main():
        future = mesh.submit(double, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(future), 0.02)
        return future

    assert asyncio.run(main()).cancelled()


def test_await_of_a_cancelled_future_is_cancelled(mesh, port):
    port.gate.clear()

    async def main():
        future = mesh.submit(double, 1)
        asyncio.get_running_loop().call_later(0.01, future.cancel)
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(main())


def test_asyncio_wrap_future_works(mesh):
    async def main():
        return await asyncio.wrap_future(mesh.submit(double, 4))

    assert asyncio.run(main()) == 8


def test_asyncio_wrap_future_raises_a_runtime_error_for_stop_iteration(mesh):
    async def main() -> None:
        await asyncio.wait_for(asyncio.wrap_future(mesh.submit(next, iter([]))), 30)

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(main())
    with pytest.raises(StopIteration):
        mesh.submit(next, iter([])).result()


def test_await_outside_a_loop_says_what_to_do(mesh, port):
    port.gate.clear()

    with pytest.raises(RuntimeError, match="result"):
        mesh.submit(double, 1).__await__().send(None)
