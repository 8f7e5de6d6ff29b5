"""@task: still the function, and something to submit."""

import functools
import inspect
import pickle
import sys
import typing
from collections.abc import Iterator

import cloudpickle
import pytest

from taskmesh import Task, TaskFuture, task
from taskmesh.errors import NoMesh
from taskmesh.serialize import values

WAIT_S = 10


@task
def plain(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


@task(queue="slow", retries=2)
def slow(text: str) -> str:
    return text.upper()


@task
async def coming(number):
    return number


class Holder:
    @task(priority=3)
    def method(self, number):
        return (type(self).__name__, number)


class Caller:
    def __call__(self, number):
        return -number


def test_static_method_is_a_task_below_its_decorator(mesh):
    class Sums:
        @staticmethod
        @task
        def add(a, b):
            return a + b

    assert (Sums.add(1, 2), Sums().add(1, 2)) == (3, 3)
    assert (Sums.add.submit(1, 2).result(WAIT_S), Sums().add.submit(1, 2).result(WAIT_S)) == (3, 3)


@pytest.mark.parametrize(
    ("kind", "cure"), [(staticmethod, "@staticmethod above @task"), (classmethod, "mesh.submit")]
)
def test_task_above_a_method_s_decorator_is_refused_with_the_cure(kind, cure):
    with pytest.raises(TypeError, match=cure):
        task(kind(lambda: None))


def test_task_is_still_its_function():
    assert isinstance(plain, Task)
    assert plain(2, b=3) == 5
    assert (plain.__name__, plain.__doc__, plain.__module__) == ("plain", "Adds.", __name__)
    assert list(inspect.signature(plain).parameters) == ["a", "b"]
    assert typing.get_type_hints(plain) == {"a": int, "b": int, "return": int}
    assert slow.options.queue == "slow"
    assert slow.options.retries.max == 2
    assert "plain" in repr(plain)


def test_task_submits_to_the_innermost_mesh(mesh):
    future = plain.submit(2, b=5)

    assert isinstance(future, TaskFuture)
    assert future.result(WAIT_S) == 7
    assert mesh.submit(plain, 1).result(WAIT_S) == 2
    assert list(mesh.map(slow, ["a", "b"])) == ["A", "B"]


def test_arguments_may_have_any_name(mesh):
    @task
    def keywords(**named):
        return named

    named = {"self": 1, "fn": 2, "args": 3, "kwargs": 4}

    assert keywords(**named) == keywords.submit(**named).result(WAIT_S) == named
    assert mesh.submit(keywords, **named).result(WAIT_S) == named


def test_task_without_a_mesh_says_what_to_do():
    with pytest.raises(NoMesh, match="with Mesh"):
        plain.submit(1)


def test_task_on_a_method_stays_a_method():
    holder = Holder()

    assert holder.method(3) == ("Holder", 3)
    assert isinstance(Holder.method, Task)


def test_task_on_a_method_is_submitted_with_its_object_and_options(mesh, port):
    holder = Holder()

    assert holder.method.submit(4).result(WAIT_S) == ("Holder", 4)
    assert mesh.submit(holder.method, 5).result(WAIT_S) == ("Holder", 5)
    assert list(mesh.map(holder.method, [6])) == [("Holder", 6)]
    assert {port._specs[run.spec].priority for run in port.runs} == {3}


def test_task_on_a_method_pickles_with_its_object():
    copy = pickle.loads(pickle.dumps(Holder().method))

    assert copy(7) == ("Holder", 7)
    assert copy.options.priority == 3


def test_task_on_a_method_is_submitted_by_its_class(mesh):
    assert Holder.method.submit(Holder(), 4).result(WAIT_S) == ("Holder", 4)


def test_task_of_a_task_has_one_function_and_the_outer_options():
    outer = task(priority=4)(slow)

    assert outer.__wrapped__ is slow.__wrapped__
    assert (outer.options.priority, outer.options.queue) == (4, "default")


def test_task_pickles_by_name_where_the_name_leads_to_it():
    assert pickle.loads(pickle.dumps(plain)) is plain


def test_task_pickles_by_value_where_its_name_leads_nowhere():
    @task(queue="inner")
    def nested(number):
        return number + 1

    copy = cloudpickle.loads(cloudpickle.dumps(nested))

    assert copy(1) == 2
    assert copy.options.queue == "inner"


@pytest.fixture
def by_value(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This module's functions travel by value, as those of `__main__` do."""
    module = sys.modules[__name__]
    monkeypatch.setattr(values, "REGISTERED", [__name__.encode()])
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.parametrize("made", [plain, Holder.method])
@pytest.mark.usefixtures("by_value")
def test_a_task_that_travels_by_value_is_pickled_by_name_elsewhere(made):
    """As a function of `__main__` is: multiprocessing takes it, and so does a foreign cloudpickle."""
    assert pickle.loads(pickle.dumps(made)) is made
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    assert copy is not made
    assert copy.options == made.options
    assert copy.__wrapped__ is not made.__wrapped__
    assert copy.__wrapped__.__code__ == made.__wrapped__.__code__


@pytest.mark.usefixtures("by_value")
def test_a_task_whose_name_leads_nowhere_where_it_is_unpickled_says_so(monkeypatch):
    data = pickle.dumps(plain)
    monkeypatch.delattr(sys.modules[__name__], "plain")

    with pytest.raises(AttributeError, match="plain"):
        pickle.loads(data)


@pytest.mark.parametrize("called", [functools.partial(divmod, 7), Caller()])
def test_what_is_called_and_has_no_name_makes_a_task_that_travels(mesh, called):
    made = task(called)

    assert repr(made).startswith("<task ")
    assert pickle.loads(pickle.dumps(made))(2) == called(2)
    assert mesh.submit(lambda fn, number: fn(number), made, 2).result(WAIT_S) == called(2)


def test_task_decorates_functions_only():
    with pytest.raises(TypeError, match="decorates a function"):
        task("queue")
