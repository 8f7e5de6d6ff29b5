"""Mesh: opening, leaving, who is current, waiting for room, forks."""

import asyncio
import contextlib
import os
import signal
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from weakref import WeakValueDictionary

import pytest

from taskmesh import Mesh, MeshExecutor, task
from taskmesh.client import client as client_module
from taskmesh.client import current_mesh as current_mesh_module
from taskmesh.client.current_mesh import current_mesh
from taskmesh.errors import ConfigError, ForkedMeshError, HubUnreachable, MeshClosed, NoMesh
from tests.client.inline_port import InlinePort
from tests.harness.waiting import wait_until

WAIT_S = 10


@task
def double(number: int) -> int:
    return 2 * number


# --- opening


def test_mesh_opens_at_the_first_submit(opened):
    mesh = Mesh(workers=2, config={})
    assert opened.ports == []

    assert mesh.submit(double, 4).result(WAIT_S) == 8
    mesh.close()

    assert opened.last.closed_with == [False]


def test_mesh_that_cannot_open_says_why_and_can_be_tried_again(opened, monkeypatch):
    def unreachable(self, timeout):
        raise HubUnreachable(f"not within {timeout}")

    mesh = Mesh("tcp://127.0.0.1:1", config={}, open_timeout=3)
    with monkeypatch.context() as patch:
        patch.setattr(InlinePort, "start", unreachable)
        for call in (lambda: mesh.submit(double, 1), mesh.__enter__, lambda: list(mesh.map(double, [1]))):
            with pytest.raises(HubUnreachable, match="3"):
                call()

    assert mesh.submit(double, 1).result(WAIT_S) == 2
    mesh.flush(WAIT_S)
    mesh.close()


def test_settings_reach_the_port(opened):
    with Mesh(workers=3, hub="process", config={"hub": {"lease": 2}}, pool__grace=1):
        config = opened.last._config

    assert (config.pool.concurrency, config.mesh.hub, config.hub.lease, config.pool.grace) == (
        3,
        "process",
        2,
        1,
    )


def test_workers_beside_an_address_are_refused_and_go_before_one_of_the_environment(opened, monkeypatch):
    """B6: the arguments say what kind of mesh it is, not what is left in the environment."""
    for given in ({"address": "tcp://127.0.0.1:5550"}, {"mesh__address": "tcp://127.0.0.1:5550"}):
        with pytest.raises(ConfigError, match="embedded"):
            Mesh(workers=2, **given)
    for workers in (0, "2", 1.5, True):
        with pytest.raises(ConfigError, match="workers="):
            Mesh(workers=workers)

    monkeypatch.setenv("TASKMESH_ADDRESS", "tcp://127.0.0.1:5550")
    with Mesh(workers=2):
        assert opened.last._config.mesh.address == ""
    with Mesh(workers=2, config={"mesh": {"address": "tcp://127.0.0.1:5551"}}):
        assert opened.last._config.mesh.address == ""


def test_a_number_in_the_address_s_place_hints_at_workers():
    with pytest.raises(ConfigError, match=r"write Mesh\(workers=2\)"):
        Mesh(2)


def test_a_mesh_says_where_it_is_and_what_is_under_way(opened):
    mesh = Mesh(workers=2, config={})
    assert repr(mesh) == "<Mesh embedded, 2 slots: not open yet, 0 tasks under way>"
    with mesh:
        assert repr(mesh) == "<Mesh embedded, 2 slots: open, 0 tasks under way>"
    assert repr(mesh) == "<Mesh embedded, 2 slots: closed, 0 tasks under way>"
    assert mesh._repr_html_() == "<b>Mesh embedded, 2 slots: closed, 0 tasks under way</b>"
    assert repr(Mesh("tcp://127.0.0.1:5550", config={})).startswith("<Mesh at tcp://127.0.0.1:5550: not open")


@pytest.mark.usefixtures("processes")
def test_a_notebook_shows_counts_and_pools():
    with Mesh(workers=1, config={}) as mesh:
        mesh.submit(abs, -1).result(WAIT_S)

        page = mesh._repr_html_()

    assert "1 tasks finished" in page
    assert "<td>local</td><td>ready</td><td>1</td>" in page


def test_unknown_setting_is_refused_at_once():
    with pytest.raises(ConfigError, match="did you mean 'lease'"):
        Mesh(leese=3)


# --- who is current


def test_innermost_mesh_is_current(make_mesh):
    outer = make_mesh()
    assert current_mesh() is outer
    with Mesh(workers=1, config={}) as inner:
        assert current_mesh() is inner
        assert double.submit(1).result(WAIT_S) == 2
    assert current_mesh() is outer
    outer.close()
    with pytest.raises(NoMesh):
        current_mesh()


def test_mesh_is_current_in_threads_started_inside_and_in_async_tasks(mesh):
    found = []
    thread = threading.Thread(target=lambda: found.append(current_mesh()))
    thread.start()
    thread.join(WAIT_S)

    async def main():
        async with Mesh(workers=1, config={}) as inner:
            task = asyncio.create_task(_current())
            found.append(await task is inner)
        found.append(await asyncio.create_task(_current()))

    asyncio.run(main())
    assert found == [mesh, True, mesh]


async def _current():
    return current_mesh()


def test_mesh_is_current_in_its_own_callbacks(make_mesh):
    mesh, other = make_mesh(), make_mesh()
    found = []

    for one in (mesh, other):
        one.submit(double, 1).add_done_callback(lambda f: found.append(current_mesh()))

    wait_until(lambda: len(found) == 2)
    assert set(found) == {mesh, other}


def test_meshes_of_two_threads_do_not_mix(opened):
    meshes = {}
    barrier = threading.Barrier(2, timeout=WAIT_S)

    def run(name):
        with Mesh(workers=1, config={}) as mesh:
            barrier.wait()
            meshes[name] = current_mesh() is mesh
            barrier.wait()

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert meshes == {"a": True, "b": True}


# --- the only mesh of the process


@pytest.fixture
def alone(opened, monkeypatch):
    """The test's meshes are the first of the process."""
    monkeypatch.setattr(current_mesh_module, "_made", WeakValueDictionary())


@pytest.mark.usefixtures("alone")
def test_the_only_mesh_of_the_process_is_current_without_a_block(opened):
    mesh = Mesh(workers=1, config={})

    assert current_mesh() is mesh
    assert opened.ports == []
    assert double.submit(1).result(WAIT_S) == 2
    assert current_mesh() is mesh
    assert _in_a_thread(current_mesh) is mesh
    with Mesh(workers=1, config={}) as inner:
        assert current_mesh() is inner
    assert current_mesh() is mesh
    mesh.close()
    with pytest.raises(NoMesh, match="no mesh is open"):
        double.submit(1)


@pytest.mark.usefixtures("alone")
def test_one_of_two_meshes_without_a_block_is_not_guessed():
    one, other = Mesh(workers=1, config={}), Mesh(workers=1, config={})
    with pytest.raises(NoMesh, match=r"2 meshes are open here.*mesh\.submit\(f, x\)"):
        double.submit(1)

    one.close()
    assert current_mesh() is other
    del other
    with pytest.raises(NoMesh, match="no mesh is open"):
        current_mesh()


@pytest.mark.usefixtures("alone")
def test_meshes_may_be_made_and_dropped_while_others_look(opened):
    mesh = Mesh(workers=1, config={})
    ends = threading.Event()

    def make():
        while not ends.is_set():
            Mesh(workers=1, config={})

    makers = [threading.Thread(target=make) for _ in range(3)]
    for maker in makers:
        maker.start()
    try:
        for _ in range(2_000):
            with contextlib.suppress(NoMesh):  # two, at that time
                assert current_mesh() is mesh
    finally:
        ends.set()
        for maker in makers:
            maker.join(WAIT_S)
    assert current_mesh() is mesh


@pytest.mark.usefixtures("alone", "processes")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_finds_its_own_mesh_and_not_its_parents(opened):
    mesh = Mesh(workers=1, config={})
    assert double.submit(1).result(WAIT_S) == 2

    child = os.fork()
    if child == 0:
        found = ["parent's"]
        try:
            current_mesh()
        except NoMesh:
            own = Mesh(workers=1, config={})
            found = ["own"] if current_mesh() is own else ["another"]
        os._exit(0 if found == ["own"] else 1)  # noqa: TID251  a forked child
    assert os.waitpid(child, 0)[1] == 0
    assert current_mesh() is mesh
    mesh.close()


def _in_a_thread(call):
    with ThreadPoolExecutor() as threads:
        return threads.submit(call).result(WAIT_S)


# --- meshes that nobody holds


def test_mesh_that_nobody_holds_ends_after_its_tasks(opened):
    """A notebook's cell that opens a mesh is run again and again."""
    mesh = Mesh(workers=2, config={})
    futures = [mesh.submit(double, 1)]
    opened.last.gate.clear()
    futures += [mesh.submit(double, i) for i in range(10)]
    with pytest.warns(ResourceWarning, match="use `with Mesh"):
        del mesh
    assert opened.last.closed_with == []
    opened.last.release()

    assert [f.result(WAIT_S) for f in futures] == [2, *(2 * i for i in range(10))]
    wait_until(lambda: opened.last.closed_with == [False])


@pytest.mark.parametrize("buffersize", [None, 2])
def test_results_of_a_mesh_that_nobody_holds_all_come(opened, buffersize):
    results = Mesh(workers=2, config={}).map(double, range(100), buffersize=buffersize)

    assert list(results) == [2 * i for i in range(100)]
    with pytest.warns(ResourceWarning):
        del results
    wait_until(lambda: opened.last.closed_with == [False])


def test_whoever_submits_to_a_mesh_holds_it(opened):
    submitter = Mesh(workers=2, config={}).with_options(priority=1).with_options(retries=1)
    with MeshExecutor(mesh=submitter) as executor:
        assert executor.submit(double, 1).result(WAIT_S) == 2
    del executor
    assert submitter.submit(double, 2).result(WAIT_S) == 4
    assert opened.last.closed_with == []
    with pytest.warns(ResourceWarning):
        del submitter
    wait_until(lambda: opened.last.closed_with == [False])


def test_callbacks_of_a_mesh_that_nobody_holds_may_submit_to_it(opened):
    found = []
    mesh = Mesh(workers=2, config={})
    future = mesh.submit(double, 1)
    opened.last.gate.clear()
    future = mesh.submit(double, 2)
    future.add_done_callback(lambda f: found.append(double.submit(5)))
    with pytest.warns(ResourceWarning):
        del mesh
    opened.last.release()

    wait_until(lambda: opened.last.closed_with == [False])
    assert found[0].result(0) == 10


def test_mesh_that_was_never_used_goes_without_a_word(opened):
    Mesh(workers=2, config={})
    assert opened.ports == []


# --- leaving


def test_clean_exit_waits_for_all_tasks_and_their_callbacks(opened):
    seen = []
    with Mesh(workers=2, config={}) as mesh:
        port = opened.last
        port.gate.clear()
        futures = [mesh.submit(double, i) for i in range(100)]
        futures[0].add_done_callback(lambda f: seen.append(mesh.submit(double, 500)))
        threading.Timer(0.05, port.release).start()

    assert all(future.done() for future in futures)
    assert seen[0].result(0) == 1000
    assert port.closed_with == [False]


def test_exit_by_an_exception_cancels(opened):
    futures = []

    def use():
        with Mesh(workers=2, config={}) as mesh:
            opened.last.gate.clear()
            futures.extend(mesh.submit(double, i) for i in range(10))
            raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        use()

    assert len(futures) == 10
    assert all(future.cancelled() for future in futures)
    assert opened.last.closed_with == [True]
    with pytest.raises(CancelledError):
        futures[0].result()


def test_clean_exit_that_is_interrupted_cancels(opened, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), Mesh(workers=2, config={}) as mesh:
        opened.last.gate.clear()
        future = mesh.submit(double, 1)
        monkeypatch.setattr(mesh._client.table, "wait_idle", interrupted)

    assert future.cancelled()
    assert opened.last.closed_with == [True]


def test_closed_mesh_takes_nothing(mesh):
    mesh.close()
    mesh.close()

    for call in (
        lambda: mesh.submit(double, 1),
        mesh.status,
        mesh.__enter__,
        lambda: mesh.executor().submit(double, 1),
    ):
        with pytest.raises(MeshClosed):
            call()
    with pytest.raises(NoMesh):
        double.submit(1)


def test_close_by_a_callback_does_not_hang(make_mesh):
    mesh = make_mesh()
    closed = threading.Event()

    mesh.submit(double, 1).add_done_callback(lambda f: (mesh.close(), closed.set()))

    assert closed.wait(WAIT_S)


def test_broken_port_ends_every_future_with_its_error(mesh, port):
    port.gate.clear()
    future = mesh.submit(double, 1)

    mesh._client.table.broken(HubUnreachable("the hub is gone"))

    for call in (future.result, lambda: mesh.submit(double, 1), lambda: mesh.flush(1)):
        with pytest.raises(HubUnreachable):
            call()


def test_async_mesh_waits_without_blocking_the_loop(opened):
    async def main():
        async with Mesh(workers=2, config={}) as mesh:
            port = opened.last
            port.gate.clear()
            future = mesh.submit(double, 2)
            asyncio.get_running_loop().call_later(0.02, port.release)  # only a loop that runs gets there
        return future.result(0)

    assert asyncio.run(main()) == 4


def test_async_mesh_whose_exit_is_cancelled_cancels_its_tasks(opened):
    submitted = asyncio.Event()

    async def use():
        async with Mesh(workers=2, config={}) as mesh:
            opened.last.gate.clear()
            mesh.submit(double, 2)
            submitted.set()

    async def main():
        using = asyncio.create_task(use())
        await submitted.wait()
        await asyncio.sleep(0)
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using

    asyncio.run(main())
    assert opened.last.closed_with == [True]


def test_each_unclosed_mesh_is_closed_at_exit_though_closing_another_fails(make_mesh, opened, monkeypatch):
    meshes = [make_mesh(), make_mesh()]
    for mesh in meshes:
        mesh.submit(double, 1).result(WAIT_S)
    ports = list(opened.ports)
    for port in ports:
        port.gate.clear()
    futures = [mesh.submit(double, 2) for mesh in meshes]
    for port in ports:
        real = port.close

        def close(*, cancel, timeout, real=real):
            real(cancel=cancel, timeout=timeout)
            raise OSError("no more of these")

        monkeypatch.setattr(port, "close", close)
    monkeypatch.setattr(client_module, "_nobody_waits", threading.Event())

    with (
        pytest.warns(RuntimeWarning, match="2 pending tasks were cancelled"),
        pytest.raises(OSError, match="these"),
    ):
        client_module._at_exit()

    assert all(future.cancelled() for future in futures)
    assert [port.closed_with for port in ports] == [[True], [True]]


def test_mesh_closes_while_another_one_opens(make_mesh, opened):
    class Neighbour:
        """A session that is looked at just as a third one opens, and so joins the set."""

        @property
        def wired(self):
            client_module._open_clients.add(third)
            return True

    mesh, third = make_mesh(), make_mesh()._client
    client_module._open_clients.discard(third)
    others = {Neighbour(), Neighbour()}
    client_module._open_clients.update(others)
    try:
        mesh.close()
    finally:
        client_module._open_clients.difference_update(others)


# --- forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("processes")
def test_mesh_in_a_forked_child_raises_and_the_parents_goes_on(mesh, port):
    port.gate.clear()
    pending = mesh.submit(double, 1)
    wait_until(lambda: port.runs)
    reading, writing = os.pipe()

    child = os.fork()
    if child == 0:
        told = [str(port.was_forked)]
        for call in (
            lambda: mesh.submit(double, 1),
            lambda: double.submit(1),
            lambda: pending.result(WAIT_S),
            mesh.status,
            lambda: mesh.map(double, [1]),
        ):
            try:
                call()
                told.append("nothing")
            except BaseException as error:  # noqa: BLE001
                told.append(type(error).__name__)
        mesh.close()
        told.append("closed")
        os.write(writing, " ".join(told).encode())
        os._exit(0)  # noqa: TID251  a forked child
    os.close(writing)
    with open(reading) as pipe:
        told = pipe.read().split()
    os.waitpid(child, 0)
    port.release()

    assert told == ["True", *[ForkedMeshError.__name__] * 5, "closed"]
    assert pending.result(WAIT_S) == 2
    assert not port.was_forked


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("processes")
def test_map_and_executor_in_a_forked_child_end(mesh, port):
    port.gate.clear()
    executor = mesh.executor()
    results = [
        mesh.map(double, range(3)),
        mesh.map(double, range(3), buffersize=1),
        executor.map(double, [1]),
    ]
    wait_until(lambda: port.runs)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not the test run's: it would go on here
        signal.alarm(WAIT_S)
        told = []
        for each in results:
            try:
                next(each)
            except ForkedMeshError:
                told.append(each)
        executor.shutdown()
        os._exit(0 if told == results else 1)  # noqa: TID251  a forked child
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    port.release()

    assert [list(each) for each in results] == [[0, 2, 4], [0, 2, 4], [2]]
