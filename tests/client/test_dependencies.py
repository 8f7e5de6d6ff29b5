"""Tasks that depend on others, in an embedded mesh, as users write them."""

import pickle
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from taskmesh import Mesh, TaskState, lazy, task
from taskmesh.errors import ConfigError, DependencyError, TooLarge

END_S = 30


@dataclass
class Order:
    item: object
    more: dict[str, object]


@task
def square(x: int) -> int:
    return x * x


@task
def total(values: list[int]) -> int:
    return sum(values)


@task
def look(value: object) -> str:
    return repr(value)


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
def outcome(end: object) -> tuple[str, str]:
    return str(end.state), repr(end.exception())  # type: ignore[attr-defined]


@task
def result_of(end: object) -> object:
    return end.result()  # type: ignore[attr-defined]


@task
def children() -> list[object]:
    return [square.submit(x) for x in range(3)]


@task
def same(first: list[int], second: list[int]) -> tuple[bool, int]:
    first.append(1)
    return first is second, len(second)


@pytest.fixture
def mesh(processes: None) -> Iterator[Mesh]:
    with Mesh(workers=2) as mesh:
        yield mesh


@pytest.mark.usefixtures("mesh")
class TestArguments:
    def test_a_chord_and_a_chain(self):
        squares = [square.submit(x) for x in range(300)]

        assert total.submit(squares).result(END_S) == sum(x * x for x in range(300))
        assert square.submit(square.submit(square.submit(3))).result(END_S) == 6561

    def test_futures_at_any_depth(self):
        one = square.submit(2)
        value = [{"deep": (Order([3, 4], {"x": [one]}), one)}]

        assert look.submit(value).result(END_S) == repr([{"deep": (Order([3, 4], {"x": [4]}), 4)}])

    def test_a_chain_that_type_checkers_accept(self):
        assert square.submit(lazy(square.submit(lazy(square.submit(2))))).result(END_S) == 256

    def test_a_future_twice_is_one_value(self, mesh):
        values = mesh.submit(list)

        assert same.submit(values, values).result(END_S) == (True, 1)

    def test_as_a_keyword_and_of_a_lambda(self, mesh):
        one = mesh.submit(lambda: 20)

        assert mesh.submit(lambda *, x: x + 1, x=one).result(END_S) == 21

    def test_outside_a_submission_a_future_cannot_be_pickled(self, mesh):
        one = square.submit(1)

        with pytest.raises(TypeError, match="pass it to submit"):
            pickle.dumps(one)

    def test_items_of_a_map_wait_for_their_own_futures(self, mesh):
        late = square.with_options(delay=0.3).submit(2)
        items = [1, late, 3, square.submit(4), *range(200)]

        results = mesh.map(square, items, ordered=False)
        first = next(results)
        assert first != 16
        assert sorted([first, *results]) == sorted([1, 16, 9, 256, *(x * x for x in range(200))])
        assert list(mesh.starmap(look, [([late],), ("x",)])) == ["[4]", "'x'"]

    def test_an_item_whose_future_fails_has_its_error_in_its_place(self, mesh):
        results = list(mesh.map(square, [1, fail.submit("no"), 3], return_exceptions=True))

        assert (results[0], results[2]) == (1, 9)
        assert isinstance(results[1], DependencyError)

    def test_a_future_of_another_mesh_is_refused(self):
        own = square.submit(1)

        with Mesh(workers=1) as other, pytest.raises(TypeError, match="another mesh"):
            other.submit(look, own)

    def test_a_task_depends_on_so_many_others_at_most(self, mesh, monkeypatch):
        monkeypatch.setattr("taskmesh.client.client.MOST_EDGES", 100)
        squares = [square.submit(x) for x in range(101)]

        assert total.submit(squares[1:]).result(END_S) == sum(x * x for x in range(1, 101))
        with pytest.raises(TooLarge, match="depends on 101 tasks, and 100 is the most"):
            total.submit(squares)

    def test_a_task_returns_the_futures_of_its_children(self):
        assert children.submit().result(END_S) == [0, 1, 4]
        assert total.submit(children.submit()).result(END_S) == 5

    def test_a_long_chain(self):
        one = square.submit(1)
        for _ in range(2000):
            one = square.submit(one)

        assert one.result(END_S) == 1


@pytest.mark.usefixtures("mesh")
class TestEnds:
    def test_a_failure_is_passed_on_with_its_cause_and_the_path(self):
        first = fail.submit("no")
        second = square.submit(first)
        last = square.submit(second)

        with pytest.raises(DependencyError, match="ValueError: no") as caught:
            last.result(END_S)
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.task_id == first.task_id
        assert caught.value.path == (first.task_id, second.task_id, last.task_id)
        assert last.state is TaskState.FAILED

    def test_when_done(self):
        done = outcome.with_options(when="done")

        assert done.submit(fail.submit("no")).result(END_S) == ("failed", "ValueError('no')")
        assert done.submit(square.submit(3)).result(END_S) == ("succeeded", "None")
        assert result_of.with_options(when="done").submit(square.submit(3)).result(END_S) == 9

    def test_when_failure(self):
        on_failure = look.with_options(when="failure", after=fail.submit("no"))
        assert on_failure.submit("told").result(END_S) == "'told'"

        skipped = look.with_options(when="failure", after=square.submit(1)).submit("told")
        with pytest.raises(CancelledError):
            skipped.result(END_S)

    def test_after_waits_without_the_value(self):
        first = square.with_options(delay=0.3).submit(1)
        last = look.with_options(after=[first]).submit("x")

        assert last.result(END_S) == "'x'"
        assert first.done()


@pytest.mark.usefixtures("mesh")
class TestTimes:
    def test_delay(self):
        began = time.monotonic()

        assert square.with_options(delay=0.4).submit(2).result(END_S) == 4
        assert time.monotonic() - began >= 0.4

    def test_at(self):
        when = datetime.now(UTC) + timedelta(seconds=0.4)

        assert square.with_options(at=when).submit(2).result(END_S) == 4
        assert datetime.now(UTC) >= when - timedelta(milliseconds=5)
        assert square.with_options(at=datetime(2020, 1, 1, tzinfo=UTC)).submit(3).result(END_S) == 9


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"at": datetime(2027, 1, 1)}, "a datetime with a time zone"),  # noqa: DTZ001
        ({"at": 5}, "a datetime with a time zone"),
        ({"after": 7}, "a future, or several"),
        ({"after": ["x"]}, "a future, or several"),
        ({"when": "always"}, "'success', 'done' or 'failure'"),
        ({"delay": -1}, "seconds"),
        ({"delay": 1, "at": datetime(2027, 1, 1, tzinfo=UTC)}, "not both"),
    ],
)
def test_values_that_cannot_be_used_are_refused_in_words(options, text):
    with pytest.raises(ConfigError, match=text):
        square.with_options(**options)


def test_a_map_takes_no_options_of_single_calls(mesh):
    with pytest.raises(ConfigError, match="one by one"):
        mesh.with_options(delay=1).map(square, [1])
