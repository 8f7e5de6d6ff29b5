"""Submitting: room, options, keys, what cannot travel, cancelling and flushing."""

import asyncio
import threading

import pytest

from taskmesh import Mesh, errors, task
from taskmesh.errors import ConfigError, QueueFull

WAIT_S = 10


@task
def double(number: int) -> int:
    return 2 * number


def test_asubmit_waits_for_room_where_submit_would_raise(make_mesh, opened):
    mesh = make_mesh(max_pending=5)
    port = opened.last

    async def main():
        port.gate.clear()
        futures = [await mesh.asubmit(double, i) for i in range(5)]
        with pytest.raises(QueueFull):
            mesh.submit(double, 5)
        asyncio.get_running_loop().call_later(0.02, port.release)
        futures += [await mesh.asubmit(double, i) for i in range(5, 50)]
        return [await future for future in futures]

    assert asyncio.run(main()) == [2 * i for i in range(50)]


def test_call_returns_the_result_and_waits_for_room(make_mesh, opened):
    mesh = make_mesh(max_pending=5)
    port = opened.last

    async def main():
        port.gate.clear()
        calls = [asyncio.create_task(mesh.call(double, i)) for i in range(50)]
        asyncio.get_running_loop().call_later(0.02, port.release)
        return [*await asyncio.gather(*calls), await mesh.with_options(queue="slow").call(double, number=50)]

    assert asyncio.run(main()) == [2 * i for i in range(51)]


def test_call_raises_the_error_of_its_task_or_of_the_submission(mesh):
    with pytest.raises(ZeroDivisionError):
        asyncio.run(mesh.call(divmod, 1, 0))
    with pytest.raises(errors.SerializationError, match="argument 1"):
        asyncio.run(mesh.call(print, threading.Lock()))


def test_cancelling_a_call_cancels_its_task(make_mesh, opened):
    mesh = make_mesh()
    port = opened.last

    async def main():
        port.gate.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mesh.call(double, 1), 0.02)
        assert len(port.cancelled) == 1
        assert not mesh._client.table.unended

    asyncio.run(main())


def test_submit_from_many_threads(mesh):
    results = []

    def work(start):
        futures = [mesh.submit(double, i) for i in range(start, start + 500)]
        results.extend(future.result(WAIT_S) for future in futures)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 4000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert sorted(results) == [2 * i for i in range(4000)]


def test_submit_names_the_argument_that_cannot_be_pickled(mesh):
    lock = threading.Lock()

    with pytest.raises(errors.SerializationError, match="argument 2"):
        mesh.submit(print, 1, lock)
    with pytest.raises(errors.SerializationError, match="'file'"):
        mesh.submit(print, file=lock)


def test_mesh_that_is_meant_to_travel_says_why_it_cannot(mesh):
    with pytest.raises(errors.SerializationError, match="belongs to its process"):
        mesh.submit(print, mesh)
    with pytest.raises(errors.SerializationError, match="belongs to its process"):
        mesh.submit(lambda: mesh.submit(double, 1))


def test_submit_to_a_remote_mesh_above_max_payload_is_refused(opened):
    with Mesh("tcp://127.0.0.1:5550", config={}, max_payload=100_000) as mesh:
        with pytest.raises(errors.TooLarge, match="max_payload"):
            mesh.submit(len, b"x" * 200_000)
        assert mesh.submit(len, b"x" * 1000).result(WAIT_S) == 1000
    with Mesh(config={}, max_payload=100_000) as mesh:
        assert mesh.submit(len, b"x" * 200_000).result(WAIT_S) == 200_000


def test_a_function_that_carries_more_than_max_payload_is_refused(opened):
    data = b"x" * 200_000
    with (
        Mesh("tcp://127.0.0.1:5550", config={}, max_payload=100_000) as mesh,
        pytest.raises(errors.TooLarge, match=r"the function .* with what it refers to, takes 200"),
    ):
        mesh.submit(lambda: len(data))


def test_with_options_go_before_the_tasks_own_and_add_up(mesh, port):
    urgent = mesh.with_options(priority=5).with_options(queue="fast")

    assert urgent.submit(double, 1).result(WAIT_S) == 2

    spec = port._specs[port.runs[-1].spec]
    assert (spec.priority, spec.queue) == (5, "fast")
    with pytest.raises(ConfigError, match="did you mean 'queue'"):
        mesh.with_options(queu="x")


def test_key_travels_with_a_run_of_its_own(mesh, port):
    keyed = mesh.with_options(key=lambda number: f"n{number}")

    assert [keyed.submit(double, i).result(WAIT_S) for i in (1, 2, 1)] == [2, 4, 2]
    assert [(run.key, len(run.seqs)) for run in port.runs] == [("n1", 1), ("n2", 1), ("n1", 1)]


def test_cancel_takes_one_or_many(mesh, port):
    port.gate.clear()
    futures = [mesh.submit(double, i) for i in range(5)]

    assert mesh.cancel(futures[0]) == 1
    assert mesh.cancel(iter(futures)) == 4
    assert all(future.cancelled() for future in futures)


def test_flush_waits_until_the_hub_has_confirmed(mesh, port):
    port.gate.clear()
    port.accepting = False
    mesh.submit(double, 1)
    mesh.submit(double, 2)
    with pytest.raises(TimeoutError):
        mesh.flush(0.01)

    mesh._client.table.accepted([1, 2])
    mesh.flush(WAIT_S)


def test_status_and_events_are_the_hubs(mesh):
    assert mesh.status()["what"] == "status"
    assert mesh.events(7, limit=3) == {"what": "events", "argument": "7", "limit": 3}
    assert mesh.events()["argument"] == ""


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"queue": "heavy"}, r"Mesh\(queues=\['default', 'heavy'\]\)"),
        ({"tags": ["gpu", "tpu"]}, r"Mesh\(tags=\['gpu', 'tpu'\]\)"),
    ],
)
def test_embedded_mesh_refuses_what_its_one_pool_would_never_run(opened, options, cure):
    with Mesh(workers=1, config={}) as mesh:
        asking = mesh.with_options(**options)
        with pytest.raises(ConfigError, match=cure):
            asking.submit(abs, -1)
        with pytest.raises(ConfigError, match=cure):
            asking.map(abs, [-1])
        assert mesh.submit(abs, -1).result(10) == 1
    with Mesh(workers=1, config={}, queues=["default", "heavy"], tags=["gpu", "tpu"]) as mesh:
        assert mesh.with_options(**options).submit(abs, -1).result(10) == 1
    with Mesh("tcp://127.0.0.1:5550", config={}) as mesh:  # a pool for it may come
        assert mesh.with_options(**options).submit(abs, -1).result(10) == 1
