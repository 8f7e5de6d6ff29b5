"""The table of functions: a dict hit for functions by reference, a fresh look for those by value."""

import functools
import gc
import os
from array import array

import numpy as np
import pytest

from taskmesh import Retry, task
from taskmesh.client.functions import FunctionTable
from taskmesh.core.specs import spec_number
from taskmesh.errors import ConfigError, TooLarge
from taskmesh.messages.runs import CALL, CHUNK
from taskmesh.serialize.code import FunctionCodec, load_function
from taskmesh.serialize.payload import check_size, dumps_call

TABLE = object()


def add(a, b):
    return a + b


@task(name="sum", queue="slow", priority=3, retries=Retry(max=2, on=(OSError,)), timeout=1, tags=("gpu",))
def decorated(a, b):
    return a + b


def make_table(**changes):
    return FunctionTable(TABLE, FunctionCodec(), changes)


def test_function_by_reference_is_ready_after_its_first_call():
    functions = make_table()

    run = functions.run_for(add, (1, 2), {})[0]

    assert functions.ready[id(add)] is run
    assert functions.run_for(add, (3, 4), {}) == (run, (3, 4))
    assert run.spec.name == f"{__name__}.add"
    assert run.number == spec_number(run.spec)
    assert load_function(run.spec.function) is add


def test_task_brings_its_options_and_the_table_overrides_them():
    spec = make_table(queue="fast").run_for(decorated, (), {})[0].spec

    assert (spec.name, spec.queue, spec.priority, spec.timeout, spec.tags) == (
        "sum",
        "fast",
        3,
        1.0,
        ("gpu",),
    )
    assert (spec.max_retries, spec.kind, spec.acks) == (2, CALL, "late")
    assert spec.retry_filter
    assert load_function(spec.function)(2, 3) == 5
    assert make_table().run_for(decorated, (), {})[0].spec.queue == "slow"


def test_chunks_have_a_spec_of_their_own():
    encoded, _ = make_table().encoded(add)

    chunk = encoded.chunked(7)

    assert (chunk.spec.kind, chunk.group) == (CHUNK, 7)
    assert chunk.number != encoded.call.number
    assert encoded.chunked(8).spec is chunk.spec
    assert encoded.grouped(9).number == encoded.call.number


def test_function_by_value_that_has_changed_gets_another_form():
    functions = make_table()
    cell = [1]

    def nested():
        return cell[0]

    first = functions.run_for(nested, (), {})[0]
    again = functions.run_for(nested, (), {})[0]
    cell = [2]
    changed = functions.run_for(nested, (), {})[0]

    assert again is first
    assert id(nested) not in functions.ready
    assert changed.spec.function != first.spec.function
    assert load_function(changed.spec.function)() == 2


def test_a_function_that_takes_much_along_is_told_once_with_what_it_is(caplog):
    table = array("b", bytes(2 << 20))

    def look_up(n):
        return table[n]

    functions = make_table()
    functions.encoded(look_up)
    table[0] = 1
    functions.encoded(look_up)

    (told,) = caplog.records
    assert (told.name, told.levelname) == ("taskmesh.client", "WARNING")
    assert "look_up travels by value with 2," in told.message
    assert "most of it the variable 'table' that it closes over" in told.message
    assert "Put the function" in told.message


def test_what_is_small_or_cannot_change_is_no_news(caplog):
    table = bytes(2 << 20)
    functions = make_table()
    small, constant = (lambda: 1), (lambda n: table[n])
    functions.encoded(small)
    functions.encoded(constant)

    assert not caplog.records


def test_lambdas_made_anew_are_forgotten_with_their_functions():
    functions = make_table()

    for number in range(50):
        functions.run_for(lambda number=number: number, (), {})
    gc.collect()

    assert len(functions._cached) <= 1
    assert len(functions._kept) <= 256


def test_what_large_functions_were_is_forgotten_soon():
    table = bytearray(2 << 20)

    def look_up(index):
        return table[index]

    functions = make_table()
    functions.encoded(add)
    for number in range(20):
        table[0] = number
        encoded, _ = functions.encoded(look_up)
        assert functions.encoded(look_up)[0] is encoded

    kept = sum(len(data) for data, *_ in functions._kept)
    assert 8 << 20 < kept <= 16 << 20
    table.extend(bytes(20 << 20))
    assert functions.encoded(look_up)[0] in functions._kept.values()


def test_forgotten_function_leaves_no_run_for_another_with_its_id():
    functions = make_table()
    namespace = {"__name__": __name__}
    exec("def once(): return 1", namespace)  # noqa: S102
    once = namespace.pop("once")
    functions.ready[id(once)] = None
    functions.run_for(once, (), {})
    key = id(once)

    del once
    gc.collect()

    assert key not in functions.ready
    assert key not in functions._cached


class Counter:
    def __init__(self, start):
        self.start = start

    def add(self, number):
        return self.start + number

    def __call__(self, number):
        return self.start - number


def test_bound_method_and_object_travel_as_they_are_now():
    functions = make_table()
    counter = Counter(10)
    first = functions.run_for(counter.add, (1,), {})
    counter.start = 20
    second = functions.run_for(counter.add, (1,), {})
    called = functions.run_for(counter, (1,), {})
    counter.start = 30
    called_again = functions.run_for(counter, (1,), {})

    calls = [first, second, called, called_again]
    assert [load_function(run.spec.function)(*args) for run, args in calls] == [11, 21, 19, 29]
    assert called[0].spec.name == f"{__name__}.Counter"
    assert called_again[0] is called[0], "a change of it makes no other function"


def test_partial_is_named_after_its_function():
    run, args = make_table().run_for(functools.partial(add, 1), (2,), {})

    assert run.spec.name == f"{__name__}.add"
    assert load_function(run.spec.function)(*args) == 3


def test_what_a_callable_carries_travels_as_an_argument_does(caplog):
    table = np.zeros(2 << 20, np.int8)
    run, args = make_table().run_for(functools.partial(add, table), (), {})
    call = dumps_call(args, {}, where="add")

    assert len(run.spec.function) == 1
    assert [size for _, size, _ in call.layout[1:]] == [2 << 20], "beside the pickle"
    assert not caplog.records
    with pytest.raises(TooLarge, match=r"\(what its callable carries alone takes 2,\d+,\d+\)"):
        check_size(call, 1 << 20, "the call of add", args)


def test_key_makes_a_run_of_its_own():
    functions = make_table(key=lambda a, b: f"{a}+{b}")

    first, _ = functions.run_for(add, (1, 2), {})
    second, _ = functions.run_for(add, (1,), {"b": 3})

    assert (first.key, second.key) == ("1+2", "1+3")
    assert first is not second
    assert first.number == second.number
    assert id(add) not in functions.ready
    assert make_table(key="same").run_for(add, (), {})[0].key == "same"


def test_key_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="key= has to give text, not 3"):
        make_table(key=lambda a, b: a + b).run_for(add, (1, 2), {})
    with pytest.raises(ConfigError, match=r"key= has to give text, not '.ud800'"):
        make_table(key=lambda a, b: "\ud800").run_for(add, (1, 2), {})


def test_key_that_no_message_can_carry_is_refused_with_the_cure():
    path = os.fsdecode(b"caf\xe9.txt")

    with pytest.raises(ConfigError, match=r"UTF-8 can express; .*os\.fsencode"):
        make_table(key=lambda a, b: a).run_for(add, (path, 2), {})
    assert make_table(key=lambda a, b: a).run_for(add, ("caf\xe9.txt", 2), {})[0].key == "caf\xe9.txt"


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="not of 'add'"):
        make_table().run_for("add", (), {})
