"""TaskFuture is a concurrent.futures.Future, can be awaited, and rebuilds its result once, in the caller."""

import concurrent.futures
import inspect
import pickle
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError

import pytest

from taskmesh import wait
from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.futures.outcome import TaskState
from taskmesh.errors import SerializationError
from tests.client.inline_port import WORKER, progress
from tests.harness.waiting import wait_until

WAIT_S = 10


def double(number):
    return 2 * number


def fail(text):
    raise ValueError(text)


class Slow:
    """Rebuilding it waits for `allowed`; `rebuilt` counts."""

    allowed = threading.Event()
    rebuilt = []  # noqa: RUF012

    def __reduce__(self):
        return Slow._rebuild, ()

    @staticmethod
    def _rebuild():
        Slow.rebuilt.append(threading.get_ident())
        Slow.allowed.wait(WAIT_S)
        return Slow()


def make_slow():
    return Slow()


@pytest.fixture
def slow():
    Slow.allowed.clear()
    Slow.rebuilt.clear()
    yield Slow
    Slow.allowed.set()


class Stubborn:
    def __reduce__(self):
        return int, ("not a number",)


def make_stubborn():
    return Stubborn()


# --- results


def test_result_is_the_tasks_value(mesh):
    future = mesh.submit(double, 21)

    assert future.result(WAIT_S) == 42
    assert future.exception() is None
    assert future.done()
    assert not future.cancelled()
    assert not future.running()


def test_result_raises_the_tasks_exception_with_notes_and_remote_traceback(mesh):
    future = mesh.submit(fail, "no")

    with pytest.raises(ValueError, match="no") as caught:
        future.result(WAIT_S)

    assert future.exception() is caught.value
    notes = "\n".join(caught.value.__notes__)
    assert future.task_id in notes
    assert WORKER in notes
    assert "attempt 1" in notes
    assert "in fail" in future.traceback_text


def test_the_frame_of_result_has_all_its_arguments_and_not_the_future(mesh):
    future = mesh.submit(fail, "no")
    with pytest.raises(ValueError, match="no") as raised:
        future.result(WAIT_S)
    frames = [inspect.getargvalues(entry.frame) for entry in inspect.getinnerframes(raised.tb)]
    [shown] = [info for info in frames if info.args[:2] == ["self", "timeout"]]

    assert shown.locals["self"] is None, "IPython looks for each argument; the future would keep itself"


def test_result_times_out_and_then_comes(mesh, port):
    port.gate.clear()
    future = mesh.submit(double, 1)

    with pytest.raises(TimeoutError, match="not done within"):
        future.result(timeout=0.01)
    assert not future.done()

    port.release()
    assert future.result(WAIT_S) == 2


def test_result_of_a_value_that_cannot_be_rebuilt_is_a_serialization_error(mesh):
    future = mesh.submit(make_stubborn)

    with pytest.raises(SerializationError, match="result") as caught:
        future.result(WAIT_S)

    assert future.task_id in caught.value.__notes__[-1]
    assert isinstance(future.exception(), SerializationError)


@pytest.mark.parametrize("damaged", [b"\x91", b"\x90", b"\x91\xa2\x00\x80", b"\xff"])
def test_a_damaged_scalar_is_a_serialization_error(mesh, damaged):
    future = mesh.submit(double, 1)
    wait([future], WAIT_S)
    future._content = damaged

    with pytest.raises(SerializationError, match="result"):
        future.result(WAIT_S)


def test_bytes_that_look_like_a_scalar_are_themselves_to_every_thread(mesh):
    futures = [mesh.submit(bytes.fromhex, "9105") for _ in range(200)]
    wait(futures, WAIT_S)
    start, results = threading.Barrier(4), []

    def read_all():
        start.wait(WAIT_S)
        results.extend(future.result(WAIT_S) for future in futures)

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert results == [b"\x91\x05"] * 800


def test_result_is_rebuilt_once_for_two_threads(mesh, slow):
    future = mesh.submit(make_slow)
    results = []
    threads = [threading.Thread(target=lambda: results.append(future.result(WAIT_S))) for _ in range(2)]

    for thread in threads:
        thread.start()
    wait_until(lambda: slow.rebuilt)
    slow.allowed.set()
    for thread in threads:
        thread.join(WAIT_S)

    assert len(slow.rebuilt) == 1
    assert results[0] is results[1]


def test_result_whose_rebuilding_blocks_blocks_only_its_own_callers(mesh, slow):
    future = mesh.submit(make_slow)
    thread = threading.Thread(target=future.result)
    thread.start()
    wait_until(lambda: slow.rebuilt)

    others = [mesh.submit(double, i) for i in range(100)]

    assert [other.result(WAIT_S) for other in others] == [2 * i for i in range(100)]
    with pytest.raises(TimeoutError, match="rebuilding"):
        future.result(timeout=0.01)
    slow.allowed.set()
    thread.join(WAIT_S)


def test_result_that_asks_for_itself_while_it_is_rebuilt_is_an_error_not_a_hang(mesh, monkeypatch):
    future = mesh.submit(make_slow)
    wait([future], WAIT_S)

    monkeypatch.setattr(Slow, "_rebuild", staticmethod(future.result))

    with pytest.raises(SerializationError, match="asks for itself"):
        future.result(WAIT_S)


def test_interrupted_rebuilding_can_be_tried_again(mesh, monkeypatch):
    future = mesh.submit(double, [4])
    wait([future], WAIT_S)
    real = TaskFuture._decode.__globals__["loads"]

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setitem(TaskFuture._decode.__globals__, "loads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        future.result(WAIT_S)
    monkeypatch.setitem(TaskFuture._decode.__globals__, "loads", real)

    assert future.result(WAIT_S) == [4, 4]


# --- concurrent.futures


def test_stdlib_wait_returns_all_when_all_are_done(mesh, port):
    port.gate.clear()
    futures = [mesh.submit(double, i) for i in range(50)]
    threading.Timer(0.02, port.release).start()

    done, pending = concurrent.futures.wait(futures, WAIT_S)

    assert done == set(futures)
    assert pending == set()


@pytest.mark.parametrize("round_", range(30))
def test_stdlib_wait_never_returns_early(mesh, round_):
    futures = [mesh.submit(double, i) for i in range(200)]

    done, pending = concurrent.futures.wait(futures, WAIT_S)

    assert len(done) == 200
    assert not pending


@pytest.mark.parametrize("round_", range(30))
def test_stdlib_as_completed_yields_each_once(mesh, round_):
    futures = [mesh.submit(double, i) for i in range(200)]

    results = sorted(future.result() for future in concurrent.futures.as_completed(futures, WAIT_S))

    assert results == [2 * i for i in range(200)]


def test_stdlib_wait_for_the_first_exception(mesh, port):
    port.gate.clear()
    bad, good = mesh.submit(fail, "x"), mesh.submit(double, 1)
    port.max_batch = 1
    port.release()

    done, _ = concurrent.futures.wait([good, bad], WAIT_S, concurrent.futures.FIRST_EXCEPTION)

    assert bad in done


def test_stdlib_wait_sees_a_cancelled_future(mesh, port):
    port.gate.clear()
    future = mesh.submit(double, 1)
    threading.Timer(0.02, future.cancel).start()

    done, _ = concurrent.futures.wait([future], WAIT_S)

    assert done == {future}
    assert future.cancelled()


def test_future_is_a_future_that_only_the_mesh_ends(mesh):
    future = mesh.submit(double, 1)

    assert isinstance(future, Future)
    for call in (
        lambda: future.set_result(1),
        lambda: future.set_exception(ValueError()),
        future.set_running_or_notify_cancel,
    ):
        with pytest.raises(InvalidStateError):
            call()
    with pytest.raises(TypeError, match="submit"):
        TaskFuture()
    with pytest.raises(TypeError, match="pass its result"):
        pickle.dumps(future)
    assert future.result(WAIT_S) == 2


# --- cancel


def test_cancel_is_at_once_and_for_good(mesh, port):
    port.gate.clear()
    future = mesh.submit(double, 1)
    wait_until(lambda: future.accepted)

    assert future.cancel() is True
    assert future.cancelled()
    assert future.cancel() is True
    assert port.cancelled == [1]
    with pytest.raises(CancelledError):
        future.result()
    with pytest.raises(CancelledError):
        future.exception()

    port.release()  # its late result is dropped
    assert mesh.submit(double, 2).result(WAIT_S) == 4
    assert future.cancelled()
    assert future.state is TaskState.CANCELLED


def test_cancel_of_a_done_future_is_refused(mesh, port):
    future = mesh.submit(double, 1)
    future.result(WAIT_S)

    assert future.cancel() is False
    assert future.result() == 2
    assert port.cancelled == []


def test_cancel_wakes_those_who_wait(mesh, port):
    port.gate.clear()
    future = mesh.submit(double, 1)
    errors = []

    def wait():
        try:
            future.result(WAIT_S)
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: future._extras is not None and future._extras.watchers)
    future.cancel()
    thread.join(WAIT_S)

    assert len(errors) == 1


# --- what it tells


def test_future_tells_where_its_task_stands(mesh, port):
    port.gate.clear()
    port.accepting = False
    future = mesh.submit(double, 3)
    wait_until(lambda: port.runs)
    assert (future.state, future.accepted) == (TaskState.PENDING, False)
    assert (future.attempt, future.worker, future.progress) == (0, "", None)

    table = mesh._client.table
    table.accepted([1])
    assert (future.state, future.accepted) == (TaskState.QUEUED, True)

    table.notice([progress(1, 0, -1)])
    assert future.running()
    assert (future.state, future.progress) == (TaskState.RUNNING, None)
    assert (future.attempt, future.worker) == (1, WORKER)

    table.notice([progress(1, 2, 5)])
    assert future.progress == (2, 5)

    port.release()
    assert future.result(WAIT_S) == 6
    assert not future.running()
    assert (future.state, future.attempt, future.worker) == (TaskState.SUCCEEDED, 1, WORKER)
    assert future.progress == (2, 5)
    assert future.traceback_text == ""
    assert len(future.task_id) == 32
    assert future.task_id in repr(future)
    assert "succeeded" in repr(future)
