"""Middleware on real meshes: in a thread, in a process, listening, and on a worker elsewhere."""

import asyncio
import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskmesh import Call, Mesh, MeshExecutor, Middleware, Retry, current_task, errors, task
from taskmesh.middleware import installed
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting.middleware import Recorder, headers, parent

WAIT_S = 30
PLACES = ["thread", "process", "listening", "elsewhere"]
INLINE_TOO = pytest.mark.parametrize("mesh", [*PLACES, "inline"], indirect=True)
Open = Callable[..., Mesh]


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[str], list[str]]:
    """Returns what a recorder of this test has written that begins with a word."""

    def read(word: str) -> list[str]:
        path = tmp_path / "recorded"
        return [line for line in path.read_text().splitlines() if line.startswith(word)]

    return read


@pytest.fixture(params=PLACES)
def mesh(request: pytest.FixtureRequest, tmp_path: Path, programs: Programs) -> Iterator[Mesh]:
    """A mesh with a recorder on both sides."""
    recorder = Recorder(str(tmp_path / "recorded"))
    if request.param == "elsewhere":
        address = programs.hub()[1]
        use = ("--use", "tests.hosting.middleware:recorder")
        programs.worker(address, *use, slots=2, RECORDER=recorder.path)
        opened = Mesh(address, middleware=[recorder])
    elif request.param == "listening":
        opened = Mesh(bind="tcp://127.0.0.1:0", workers=2, middleware=[recorder])
    elif request.param == "inline":
        opened = Mesh.inline(workers=2, middleware=[recorder])
    else:
        opened = Mesh(workers=2, hub=request.param, middleware=[recorder])
    with opened:
        yield opened


@task(name="halve", retries=Retry(1, backoff=0.01))
def halve(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


@INLINE_TOO
def test_hooks_stand_around_a_submission_and_a_task(mesh, lines):
    assert mesh.submit(halve, 4).result(WAIT_S) == 2

    assert lines("submitted") == ["submitted halve 1 {'request': 'r7'} True"]
    assert lines("begins") == ["begins halve 1 1 {'request': 'r7'} ((4,), {})"]
    wait_until(lambda: lines("ends") == ["ends halve None"])
    assert not lines("fails")


@INLINE_TOO
def test_each_attempt_that_fails_is_told(mesh, lines):
    with pytest.raises(ValueError, match="5 is odd"):
        mesh.submit(halve, 5).result(WAIT_S)

    assert lines("fails") == [f"fails halve {number} ValueError('5 is odd')" for number in (1, 2)]
    assert lines("ends") == ["ends halve ValueError('5 is odd')"] * 2


@INLINE_TOO
def test_a_task_has_the_headers_of_its_call_and_its_children_have_them_too(mesh):
    assert mesh.submit(headers).result(WAIT_S) == {"request": "r7"}
    assert mesh.submit(parent).result(WAIT_S) == {"request": "r7"}


def test_children_that_a_task_runs_itself_have_the_hooks_of_all(local, tmp_path, lines):
    """No more than four permits of a slot are lent: the deepest tasks run in their parents."""

    @task(name="deeper")
    def deeper(depth: int) -> int:
        if not depth:
            raise ValueError("the ground")
        return deeper.submit(depth - 1).result()

    mesh = local(Recorder(str(tmp_path / "recorded")))
    with pytest.raises(ValueError, match="the ground"):
        mesh.submit(deeper, 8).result(WAIT_S)

    assert lines("submitted") == ["submitted deeper 1 {'request': 'r7'} True"] * 9
    assert lines("begins") == [
        f"begins deeper 1 1 {{'request': 'r7'}} (({depth},), {{}})" for depth in range(8, -1, -1)
    ]
    assert lines("fails") == ["fails deeper 1 ValueError('the ground')"] * 9
    assert lines("ends") == ["ends deeper ValueError('the ground')"] * 9


@INLINE_TOO
def test_a_map_is_one_submission_and_a_chunk_is_one_call(mesh, lines):
    plain = functools.partial(divmod, 12)
    assert list(mesh.map(plain, [2, 3, 4], chunksize=3)) == [(6, 0), (4, 0), (3, 0)]

    assert lines("submitted") == ["submitted builtins.divmod 3 {'request': 'r7'} True"]
    assert lines("begins") == ["begins builtins.divmod 1 3 {'request': 'r7'} (([2, 3, 4],), {})"]


@INLINE_TOO
def test_an_item_that_fails_is_told_and_the_others_have_results(mesh, lines):
    found = list(mesh.map(divmod, [4, 5], [2, 0], chunksize=2, return_exceptions=True))

    assert found[0] == (2, 0)
    assert isinstance(found[1], ZeroDivisionError)
    assert "ZeroDivisionError" in lines("fails")[0]


@INLINE_TOO
def test_a_pipe_and_an_awaited_submission_have_headers(mesh):
    def second(_: object) -> dict[str, str]:
        return dict(current_task().headers)

    assert list(mesh.pipe([1], lambda x: x, second)) == [{"request": "r7"}]

    async def submitted() -> dict[str, str]:
        return await mesh.call(headers)

    assert asyncio.run(submitted()) == {"request": "r7"}


def value_here() -> str:
    [found] = installed()
    return found()


def test_it_starts_once_in_each_process_and_a_call_of_it_gives_its_value(mesh, lines):
    mesh.wait_for_workers(2, WAIT_S)
    found = {mesh.submit(value_here).result(WAIT_S) for _ in range(20)}

    wait_until(lambda: len(lines("starts")) == 2)
    assert found <= {f"model of {line.split()[1]}" for line in lines("starts")}


@pytest.mark.parametrize("hub", ["thread", "process"])
def test_it_stops_with_its_process(hub, tmp_path, lines):
    with Mesh(workers=1, hub=hub, middleware=[Recorder(str(tmp_path / "recorded"))]) as mesh:
        mesh.submit(int).result(WAIT_S)
        assert not lines("stops")

    assert lines("stops") == lines("starts")[0].replace("starts", "stops").splitlines()


# --- one mesh in a thread


@pytest.fixture
def local() -> Iterator[Open]:
    """Opens meshes of one slot."""
    opened: list[Mesh] = []

    def make(*middleware: object, **settings: object) -> Mesh:
        mesh = Mesh(workers=1, middleware=middleware, **settings)
        opened.append(mesh)
        return mesh

    yield make
    for mesh in opened:
        mesh.close(cancel=True)


def test_a_function_by_value_finds_the_value_of_the_process(local):
    class Model(Middleware[list[int]]):
        def process_start(self) -> list[int]:
            return []

    model = Model()

    def count() -> int:
        model().append(1)
        return len(model())

    mesh = local(model)
    assert [mesh.submit(count).result(WAIT_S) for _ in range(3)] == [1, 2, 3]


def test_one_that_no_process_has_started_starts_at_its_first_use(local):
    class Lazy(Middleware[int]):
        def process_start(self) -> int:
            return os.getpid()

    lazy = Lazy()

    mesh = local()
    assert mesh.submit(lambda: lazy() == os.getpid() != 0).result(WAIT_S)


def test_they_are_entered_in_order_and_left_in_reverse(local, tmp_path):
    class Layer:
        def __init__(self, name: str) -> None:
            self.name = name

        def around_task(self, call: Call) -> Iterator[None]:
            with open(tmp_path / "order", "a") as file:
                file.write(f"+{self.name}")
            yield
            with open(tmp_path / "order", "a") as file:
                file.write(f"-{self.name}")

    mesh = local(Layer("a"), Layer("b"))
    mesh.submit(int).result(WAIT_S)
    mesh.close()

    assert (tmp_path / "order").read_text() == "+a+b-b-a"


class Broken:
    """Fails in a hook."""

    def __init__(self, where: str) -> None:
        self.where = where

    def around_submit(self, call: Call) -> Iterator[None]:
        yield from self._block("submit")

    def around_task(self, call: Call) -> Iterator[None]:
        yield from self._block("task")

    def on_failure(self, call: Call, error: BaseException) -> None:
        if self.where == "failure":
            raise LookupError("a bug of mine")

    def _block(self, hook: str) -> Iterator[None]:
        if self.where == f"before {hook}":
            raise LookupError("a bug of mine")
        try:
            yield
        except ValueError:
            if self.where == f"swallow {hook}":
                return
            raise
        if self.where == f"after {hook}":
            raise LookupError("a bug of mine")


@pytest.mark.parametrize(
    "where",
    ["before submit", "after submit", "before task", "after task", "swallow task", "failure", "nowhere"],
)
def test_a_bug_in_a_hook_changes_no_outcome(local, where):
    mesh = local(Broken(where))

    assert mesh.submit(halve, 4).result(WAIT_S) == 2
    with pytest.raises(ValueError, match="3 is odd"):
        mesh.submit(halve, 3).result(WAIT_S)
    assert mesh.submit(headers).result(WAIT_S) == {}


def test_a_start_that_fails_is_told_with_its_error(local):
    class Unable:
        def process_start(self) -> None:
            raise OSError("no such model")

    mesh = local(Unable())
    with pytest.raises(errors.TaskMeshError, match="no such model"):
        mesh.submit(int).result(WAIT_S)


def test_a_soft_limit_strikes_in_the_task_and_not_in_a_hook(local):
    class Slow:
        def around_task(self, call: Call) -> Iterator[None]:
            signal.sigtimedwait([signal.SIGUSR1], 0.2)  # as long as the limit and longer
            yield

    mesh = local(Slow())
    with pytest.raises(errors.TaskTimeout):
        mesh.submit(task(timeout=0.1)(int)).result(WAIT_S)
    with pytest.raises(errors.TaskTimeout):
        mesh.submit(task(timeout=0.3)(signal.sigtimedwait), [signal.SIGUSR1], WAIT_S).result(WAIT_S)
    assert mesh.submit(task(timeout=WAIT_S)(int)).result(WAIT_S) == 0


def test_a_mesh_without_middleware_sends_no_headers(local):
    mesh = local()

    assert mesh.submit(headers).result(WAIT_S) == {}
    assert mesh.submit(parent).result(WAIT_S) == {}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"n": 1}, "headers are texts by texts"),
        ({"n": "x" * 5000}, "headers have 5,001 bytes"),
        ({"n": "\udc80"}, "UTF-8 can express"),
    ],
)
def test_headers_that_cannot_travel_are_refused_where_they_are_made(local, made, words):
    class Header:
        def around_submit(self, call: Call) -> Iterator[None]:
            call.headers.update(made)
            yield

    with pytest.raises(errors.ConfigError, match=words):
        local(Header()).submit(int)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["taskmesh"], "'taskmesh' has none"),
        ("a:b", "a list of objects with hooks"),
        (7, "a list of objects with hooks"),
        ([object()], "has none"),
        ([Recorder("a"), Recorder("b")], "there are two .*Recorder: give each a `name`"),
    ],
)
def test_what_is_no_middleware_is_refused(given, words):
    with pytest.raises(errors.ConfigError, match=words):
        Mesh(workers=1, middleware=given)


def test_middleware_that_is_too_large_for_a_command_line_is_refused():
    class Large:
        def __init__(self) -> None:
            self.data = os.urandom(200_000)

        def process_start(self) -> None:
            """Do nothing."""

    with pytest.raises(errors.ConfigError, match=r"load what is large in process_start"):
        Mesh(workers=1, middleware=[Large()])


def test_an_executor_has_its_initializer_run_in_each_process():
    def load(*words: str) -> None:
        os.environ["LOADED"] = os.environ.get("LOADED", "") + " ".join(words)

    with MeshExecutor(2, initializer=load, initargs=("a", "model")) as executor:
        found = {executor.submit(lambda: os.environ["LOADED"]).result(WAIT_S) for _ in range(10)}
    assert found == {"a model"}


def test_a_worker_says_which_middleware_it_cannot_load(programs):
    address = programs.hub()[1]

    for given, words in (
        ("nothing", "middleware is given as MODULE:NAME"),
        ("no.such:thing", "not found by this worker"),
    ):
        outcome = programs.run("worker", "--address", address, "--use", given)
        assert outcome.returncode == 2
        assert words in outcome.stderr
