import functools
import gc
import importlib
import operator
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

import taskmesh
from taskmesh.errors import FunctionUnavailable, SerializationError, TaskTimeout
from taskmesh.serialize import values
from taskmesh.serialize.code import FunctionCodec, dump_function, load_function, register_by_value, unwrap
from tests.serialize.echo_slot import call_all_in_slot, call_in_slot

ROOT = Path(__file__).parents[2]
LOCK = threading.Lock()
MAIN_PROGRAMS = (
    *("main_program", "main_slots", "main_functools", "main_annotations", "main_spawned", "main_modules"),
)


def triple(x):
    return 3 * x


class Tool:
    offset = 1

    def __init__(self, size=0):
        self.size = size

    def __eq__(self, other):
        return self.size == other.size

    __hash__ = None

    def __call__(self, x):
        return x + self.size

    def method(self, x):
        return x * self.size

    @staticmethod
    def static(x):
        return -x

    @classmethod
    def by_class(cls, x):
        return x + cls.offset


HELD = Tool({"key": LOCK})


class Decorated:
    """What taskmesh's decorator returns looks like this to wire: of taskmesh, with __wrapped__."""

    def __init__(self, fn):
        functools.update_wrapper(self, fn)


Decorated.__module__ = "taskmesh.function"


@Decorated
def quadruple(x):
    return 4 * x


def passed_through(fn):
    return load_function(dump_function(fn))


def rebuilt(codec, fn):
    """The function as it is where its bytes arrive."""
    data, carried = codec.encode(fn)
    return lambda *args: load_function(data)(*args, *pickle.loads(pickle.dumps(carried, 5)))


def is_by_reference(fn):
    return dump_function(fn)[:1] == b"R"


# --- what travels how -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn", [triple, len, Tool, Tool.method, Tool.static, operator.add, os.path.join, Path, functools.reduce]
)
def test_what_a_worker_can_import_travels_by_reference(fn):
    assert is_by_reference(fn)
    assert passed_through(fn) is fn
    assert len(dump_function(fn)) < 100


def test_a_task_travels_as_the_function_in_it():
    assert is_by_reference(quadruple)
    assert dump_function(quadruple) == dump_function(quadruple.__wrapped__)
    assert passed_through(quadruple) is quadruple.__wrapped__
    assert unwrap(quadruple)(2) == 8
    assert unwrap(functools.wraps(triple)(lambda: 0))() == 0, "other people's decorators stay"


@pytest.mark.usefixtures("processes")
def test_other_callables_work_in_this_and_in_another_process():
    cases = [
        (lambda x: x + 1, 1, 2),
        (functools.partial(triple), 2, 6),
        (functools.partial(operator.add, 5), 2, 7),
        (Tool(4), 2, 6),
        (Tool(4).method, 2, 8),
        (Tool.by_class, 2, 3),
        (str.upper, "a", "A"),
        ([3, 4].index, 4, 1),
        (np.square, 3, 9),
        (np.linalg.norm, [3, 4], 5.0),
        (quadruple, 2, 8),
        (len, "abc", 3),
        (Tool, 3, Tool(3)),
    ]

    results = call_all_in_slot([(fn, (argument,), {}) for fn, argument, _ in cases])

    assert results == [result for _, _, result in cases]
    assert [passed_through(fn)(argument) for fn, argument, _ in cases] == results


@pytest.mark.usefixtures("processes")
def test_nested_functions_take_along_what_they_close_over():
    base = 10

    def outer(x):
        def inner(y):
            return triple(y) + base

        return inner(x)

    assert passed_through(outer)(1) == 13
    assert call_in_slot(outer, 1) == 13


def test_a_name_that_stands_for_something_else_is_no_reference(monkeypatch):
    original = triple
    monkeypatch.setitem(globals(), "triple", lambda x: 0)

    assert not is_by_reference(original)
    assert passed_through(original)(2) == 6


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """A package that workers lack."""
    package = tmp_path / "draftpkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(
        textwrap.dedent("""
            class Thing:
                def __init__(self, n):
                    self.n = n

            def double(thing):
                return Thing(2 * thing.n)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("draftpkg.inner")
    for name in ("draftpkg", "draftpkg.inner"):
        del sys.modules[name]


@pytest.mark.usefixtures("processes")
def test_registered_modules_travel_by_value_with_their_values(draft):
    with pytest.raises(
        FunctionUnavailable, match=r"finds no module 'draftpkg'.*taskmesh worker draftpkg\.inner"
    ):
        call_in_slot(draft.double, 5)

    register_by_value(sys.modules["draftpkg"])
    try:
        result = call_in_slot(draft.double, draft.Thing(4))
    finally:
        values.REGISTERED.remove(b"draftpkg")
        values.cloudpickle().unregister_pickle_by_value(sys.modules["draftpkg"])

    assert (type(result), result.n) == (draft.Thing, 8)


def test_only_imported_modules_can_be_registered():
    with pytest.raises(SerializationError, match="takes an imported module, not str: import it"):
        register_by_value("os")
    with pytest.raises(SerializationError, match="imported module"):
        register_by_value(types.ModuleType("nowhere"))


@pytest.mark.parametrize("program", MAIN_PROGRAMS)
@pytest.mark.usefixtures("processes")
def test_classes_and_functions_of_main_survive_a_round_trip(program):
    run = subprocess.run(
        [sys.executable, "-m", f"tests.serialize.{program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )

    assert (run.stdout, run.stderr) == ("all held\n", "")


# --- what cannot travel -----------------------------------------------------------------------------------


def test_an_error_names_the_global_or_variable_and_the_cure():
    def uses_global():
        return LOCK

    guard = threading.Lock()

    def uses_cell():
        return guard

    def indirect(given=1):
        return uses_cell(), given

    def has_default(lock=guard):
        return lock

    attributed = lambda: 0  # noqa: E731
    attributed.guard = guard

    for fn, words in [
        (uses_global, r"uses_global travels by value and takes the global 'LOCK' \(type _thread.lock\)"),
        (uses_cell, r"takes the variable 'guard' that it closes over \(type _thread.lock\)"),
        (indirect, r"takes the variable 'uses_cell' that it closes over, with the variable 'guard'"),
        (has_default, r"takes its default value 1 \(type _thread.lock\)"),
        (attributed, r"takes its attribute 'guard'"),
        (Tool(guard), r"the callable .*Tool \(type .*Tool\) cannot be pickled because of its \.size"),
        (Tool(guard).method, r"the callable Tool\.method .* because of its \.__self__\.size"),
        (lambda: HELD, r"takes the global 'HELD'\.size\['key'\] \(type _thread.lock\) along"),
    ]:
        with pytest.raises(
            SerializationError,
            match=rf"{words}.*(Make it inside .* or define both in a module|Make the lock where)",
        ):
            dump_function(fn)


def test_a_limit_that_strikes_meanwhile_passes_through():
    class Interrupting:
        def __reduce__(self):
            raise TaskTimeout("soft limit")

        def __call__(self):
            pass

    with pytest.raises(TaskTimeout):
        dump_function(Interrupting())


# --- what cannot be loaded --------------------------------------------------------------------------------


def test_a_missing_module_names_it_the_python_the_path_and_the_cure():
    with pytest.raises(FunctionUnavailable) as caught:
        load_function(b"Rno_such_package.tasks\0f")

    text = str(caught.value)
    assert "the function f of module no_such_package.tasks is not available" in text
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]} finds no module 'no_such_package'" in text
    assert (sys.path[0] or ".") in text
    assert "Install no_such_package on the worker" in text
    assert "`taskmesh worker no_such_package.tasks`" in text
    assert "call taskmesh.register_by_value(no_such_package) in the client" in text  # B9: a public name
    assert taskmesh.register_by_value is register_by_value


def test_a_missing_name_points_to_the_version():
    with pytest.raises(
        FunctionUnavailable, match=r"has that module \(.*os\.py\), but it has no gone.*same version"
    ):
        load_function(b"Ros\0gone")


@pytest.mark.parametrize("statement", ["1 / 0", "raise SystemExit(2)", "import no_such_dependency"])
def test_a_module_that_fails_to_import_is_a_typed_error(statement, tmp_path, monkeypatch):
    (tmp_path / "failing_module.py").write_text(f"def f(): pass\n{statement}\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(
        FunctionUnavailable,
        match=r"(ZeroDivisionError|SystemExit|no_such_dependency).*(Check that `python|Install )",
    ):
        load_function(b"Rfailing_module\0f")


def test_by_value_bytes_of_another_python_are_refused():
    data = dump_function(lambda: 1)
    other = data[:-2] + bytes((sys.version_info[1] - 1,)) + data[-1:]

    with pytest.raises(
        FunctionUnavailable, match=r"made by Python 3\.\d+.*Run the same Python minor version"
    ):
        load_function(other)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"X",
        b"R",
        b"R\xff\xfe",
        b"R\0",
        b"Ros\0",
        b"P",
        b"P\x80\x05garbage",
        b"Ros\0name",
        b"PI1\n.",
        b"R..\0x",
    ],
)
def test_bytes_that_are_no_function_are_a_typed_error(data):
    with pytest.raises(FunctionUnavailable):
        load_function(data)


def test_a_missing_module_of_a_function_by_value_is_named(tmp_path, monkeypatch):
    (tmp_path / "vanishing.py").write_text("def helper(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = importlib.import_module("vanishing").helper
    data = dump_function(lambda: helper() + 1)
    del sys.modules["vanishing"]
    monkeypatch.undo()

    with pytest.raises(
        FunctionUnavailable, match=r"function by value needs a module: .*no module 'vanishing'"
    ):
        load_function(data)


@pytest.mark.parametrize(
    "module", ["os", "taskmesh.errors", "taskmesh.cli.__main__", "tests.serialize.test_code"]
)
def test_only_a_module_of_ours_that_offers_a_frame_is_loaded_for_one(module):
    with pytest.raises(FunctionUnavailable):
        load_function(b"F" + msgspec.msgpack.encode((module, [])))

    assert "taskmesh.cli.__main__" not in sys.modules


# --- what the codec remembers, and what makes it look again ------------------------------------------------


def test_the_codec_gives_the_same_bytes_while_nothing_changes():
    codec = FunctionCodec()
    scale, options = 2, {"a": [1, 2]}

    def by_value(x):
        return triple(x) * scale + len(options)

    for fn in (triple, quadruple, by_value, len):
        assert codec.encode(fn)[0] is codec.encode(fn)[0]
    assert rebuilt(codec, by_value)(1) == 7


def test_the_codec_sees_every_kind_of_change():
    codec = FunctionCodec()
    cell, table, tool = 1, {"a": [1]}, Tool(1)

    def inner():
        return cell

    def fn(default=1, *, keyword=1):
        return cell, table["a"][0], tool.size, inner(), default, keyword, FLAG  # noqa: F821

    def result():
        return rebuilt(codec, fn)()

    globals()["FLAG"] = 1
    assert result() == (1, 1, 1, 1, 1, 1, 1)
    cell = 2
    assert result() == (2, 1, 1, 2, 1, 1, 1)
    table["a"][0] = 3
    assert result() == (2, 3, 1, 2, 1, 1, 1)
    tool.size = 4
    assert result() == (2, 3, 4, 2, 1, 1, 1)
    fn.__defaults__ = (5,)
    assert result() == (2, 3, 4, 2, 5, 1, 1)
    fn.__kwdefaults__["keyword"] = 6
    assert result() == (2, 3, 4, 2, 5, 6, 1)
    globals()["FLAG"] = 7
    assert result() == (2, 3, 4, 2, 5, 6, 7)
    del globals()["FLAG"]


def test_the_codec_sees_a_name_that_is_rebound_or_replaced(monkeypatch):
    codec = FunctionCodec()
    assert codec.encode(triple)[0][:1] == b"R"
    original = triple

    monkeypatch.setitem(globals(), "triple", lambda x: 0)

    assert rebuilt(codec, original)(2) == 6
    assert codec.encode(triple)[0] != codec.encode(original)[0]


def test_the_codec_keeps_nothing_alive():
    codec = FunctionCodec()

    class Payload:
        pass

    big = Payload()

    def recursive(n):
        return recursive(n - 1) if n else type(big)  # noqa: F821 -- deleted below

    codec.encode(recursive)
    gone = [weakref.ref(recursive), weakref.ref(big), weakref.ref(Payload)]
    del recursive, big, Payload
    gc.collect()

    assert [ref() for ref in gone] == [None] * 3
    assert codec._known == {}


def test_callables_without_an_identity_are_pickled_each_time():
    codec = FunctionCodec()
    tool = Tool(1)

    assert rebuilt(codec, tool.method)(5) == 5
    tool.size = 2
    assert rebuilt(codec, tool.method)(5) == 10
    assert rebuilt(codec, tool)(5) == 7
    assert codec.encode(str.upper)[0] == codec.encode(str.upper)[0]


def test_a_failure_does_not_stick_to_the_codec():
    codec = FunctionCodec()
    guard = threading.Lock()

    def fn():
        return guard

    with pytest.raises(SerializationError):
        codec.encode(fn)
    guard = 3

    assert rebuilt(codec, fn)() == 3


def test_the_codec_serves_many_threads():
    codec = FunctionCodec()

    def work(i):
        local = lambda: i  # noqa: E731
        return rebuilt(codec, local)() == i and codec.encode(triple)[0] == dump_function(triple)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(300)))
    gc.collect()
    assert len(codec._known) == 1


# --- modules that were loaded from a path ---


@pytest.fixture
def load_from(monkeypatch):
    """Load a module of this name and text from a file that no finder leads to."""

    def load(path, name, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        loaded.append(module)
        return module

    loaded = []
    yield load
    for module in loaded:
        if module.__name__.encode() in values.REGISTERED:
            values.REGISTERED.remove(module.__name__.encode())
            values.cloudpickle().unregister_pickle_by_value(module)


PLUGIN = "NUMBER = 2\ndef answer(x): return x * NUMBER\nclass Tool:\n    def use(self, x): return answer(x)\n"


@pytest.mark.parametrize("name", ["plugin", "colorsys", "plugins.inner"])
def test_a_module_that_its_name_does_not_lead_to_travels_by_value(tmp_path, load_from, monkeypatch, name):
    module = load_from(tmp_path / "apart" / "plugin.py", name, PLUGIN)
    codec = FunctionCodec()
    calls = [codec.encode(fn) for fn in (module.answer, module.Tool().use, lambda x: module.answer(x) + 0)]
    monkeypatch.undo()  # where they arrive

    assert [load_function(data)(4, *carried) for data, carried in calls] == [8, 8, 8]


def test_a_module_that_a_finder_leads_to_travels_by_name(tmp_path, load_from, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    importable = load_from(tmp_path / "importable.py", "importable", PLUGIN)
    inner = importlib.import_module("tests.serialize.echo_slot")

    assert is_by_reference(importable.answer)
    assert is_by_reference(inner.call_in_slot)
    assert is_by_reference(os.path.join)
    assert is_by_reference(np.linalg.norm)
