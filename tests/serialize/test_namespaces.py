"""Objects of a program are the same objects in a slot, for all of the program's functions."""

import contextlib
import functools
import gc
import random
import sys
import textwrap
import types
import weakref

import pytest

from taskmesh.serialize import code, encoding, namespaces, values
from tests.serialize.echo_slot import order, run_in_slot

pytestmark = pytest.mark.usefixtures("processes")
MODULE = """
    import functools
    from taskmesh.serialize import code

    state = None
    rate = 1
    table = {"rates": []}
    holder = {"table": table}


    class Service:
        instance = None
        rate = 1

        def __init__(self):
            self.table = table

        @classmethod
        def get(cls):
            if cls.instance is None:
                cls.instance = cls()
            return cls.instance


    service = Service()
    ring = Service()
    Service.ring = ring
    ring.ring = ring


    @functools.cache
    def model():
        return object()


    def helper():
        return rate


    def found():
        return [id(each) for each in (model(), table, service, Service, Service.get())]


    def first():
        return found(), helper()


    def second():
        return [*map(id, (model(), holder["table"], service, type(service), service.get()))], helper()


    unnamed = [lambda: id(model())][0]


    class Call:
        def __call__(self):
            return id(model())

        def told(self):
            return helper()


    def rings():
        return len({*map(id, (ring, Service.ring, ring.ring))}), service.table is table, ring.table is table


    def put(value):
        global state
        state = value


    def got():
        return state


    def size(things):
        return len(things)


    def told():
        return table["rates"], service.table["rates"], Service.rate


    def sent_on():
        return code.dump_function(second)


    def given(call):
        return call.told(), helper()
"""


@pytest.fixture
def draft(monkeypatch):
    """A module that travels by value."""
    module = types.ModuleType("draft")
    monkeypatch.setitem(sys.modules, "draft", module)
    execute(module, MODULE)
    code.register_by_value(module)
    yield module
    values.REGISTERED.remove(b"draft")
    values.cloudpickle().unregister_pickle_by_value(module)


def execute(module, text):
    """Execute more of a module, as a notebook does."""
    exec(textwrap.dedent(text), vars(module))  # noqa: S102


def test_functions_share_a_cache_a_class_and_what_else_their_module_has_names_for(draft):
    first, second, again = run_in_slot([order(draft.first), order(draft.second), order(draft.first)])

    assert first == second == again
    assert len(set(first[0])) == 5


def test_functions_without_a_name_and_callables_with_state_find_the_same(draft):
    carried = order(lambda carried: carried.load()(), code.Carried.of(draft.Call()))
    partial = order(lambda carried: carried.load()(), code.Carried.of(functools.partial(draft.first)))
    first, *others, last = run_in_slot([order(draft.first), order(draft.unnamed), carried, partial])

    assert others == [first[0][0]] * 2
    assert last == first


def test_what_one_function_puts_into_a_global_another_finds_until_the_program_changes_it(draft):
    orders = [order(draft.got), order(draft.put, 5), order(draft.got)]
    execute(draft, "rate = 2\ndef helper(): return 5")
    orders += [order(draft.first), order(draft.got)]
    draft.state = 7
    orders += [order(draft.got), order(draft.put, 8)]

    assert run_in_slot(orders)[:3] == [None, None, 5]
    assert run_in_slot(orders)[4:] == [5, 7, None]


def test_a_redefinition_takes_effect_and_leaves_tasks_of_before_and_all_else_alone(draft):
    old = order(draft.first)
    execute(draft, "def helper(): return 'new'")
    new = order(draft.first)
    found, told = zip(*run_in_slot([old, new, old, new]), strict=True)

    assert told == (1, "new", 1, "new")
    assert len(set(map(tuple, found))) == 1


def test_a_change_of_an_object_or_class_takes_effect_and_tasks_of_before_find_what_was(draft):
    old = order(draft.told)
    draft.table["rates"].append(2)
    draft.Service.rate = 2
    new = order(draft.told)

    assert run_in_slot([old, new, old, new]) == [([], [], 1), ([2], [2], 2)] * 2


def test_a_name_that_the_program_has_no_more_is_gone(draft):
    draft.len = lambda things: -1
    orders = [order(draft.size, "four")]
    del draft.len
    orders.append(order(draft.size, "four"))

    assert run_in_slot(orders * 2) == [-1, 4] * 2


def test_objects_that_refer_to_each_other_do_so_in_the_slot(draft):
    assert run_in_slot([order(draft.found), order(draft.rings)])[1] == (1, True, True)
    assert run_in_slot([order(draft.rings)]) == [(1, True, True)]


@pytest.fixture
def become(monkeypatch):
    """A way to take this process for another program."""

    def become(name):
        for each in (encoding, namespaces):
            monkeypatch.setattr(each, "this_program", lambda: name)
        for memory in ("_dumped", "_bare", "_loaded"):
            monkeypatch.setattr(encoding, memory, {})

    return become


def test_another_program_shares_nothing(draft, become):
    orders = [order(draft.first), order(draft.put, 5)]
    become("another")
    (one, _), _, (other, _), state = run_in_slot([*orders, order(draft.first), order(draft.got)])

    assert not set(one[:3]) & set(other[:3])
    assert state is None


def test_code_that_a_slot_sends_on_is_what_it_has_got(draft):
    [data] = run_in_slot([order(draft.sent_on)])
    (ours, _), _, (theirs, _), state = run_in_slot(
        [order(draft.first), order(draft.put, 5), (data, order(draft.first)[1]), order(draft.got)]
    )

    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [True, False, False, True, True], (
        "data is new"
    )
    assert state == 5


def test_what_arguments_bring_along_does_not_change_what_the_running_function_finds(draft):
    _, arguments = order(draft.given, draft.Call())
    execute(draft, "def helper(): return 'new'")
    new, _ = order(draft.given, draft.Call())

    assert run_in_slot([(new, arguments), order(draft.given, draft.Call())]) == [("new", "new")] * 2


def test_a_program_is_forgotten_with_the_last_of_its_functions(draft, become):
    become("forgotten")
    function = code.load_function(code.dump_function(draft.first))
    program = weakref.ref(namespaces._programs["forgotten"])
    function()
    encoding._loaded.clear()
    gc.collect()
    assert program() is not None
    del function
    gc.collect()

    assert program() is None


NAMES = [f"n{number}" for number in range(7)]
SHOW = f"""
    class Node:
        rate = 0

        def __init__(self, one, other):
            self.parts = one, other


    def show():
        found = {{}}
        for name, get in ({",".join(f"('{name}', lambda: {name})" for name in [*NAMES, "Node"])}):
            try:
                found[name] = get()
            except NameError:
                pass
        names = {{id(value): name for name, value in reversed(found.items())}}

        def shown(value, above):
            if isinstance(value, int) or len(above) > 6:
                return value if isinstance(value, int) else "deep"
            name = names.get(id(value))
            if name in above:
                return name, "ring"
            if isinstance(value, (list, tuple)):
                parts = value
            elif isinstance(value, dict):
                parts = [*value.values()]
            elif isinstance(value, type):
                parts = [value.rate]
            elif isinstance(value, Node):
                parts = [type(value), *value.parts]
            else:
                try:
                    parts = [value()]
                except NameError:
                    parts = []
            return name, type(value).__name__, [shown(part, (*above, name)) for part in parts]

        return [shown(value, ()) for value in found.values()]
"""
CHANGES = (
    "def {n}(): return [{number}, {o}]",
    "{n} = lambda: {o}",
    "{n} = [{o}, {p}, {number}]",
    "{n} = {{'x': {o}}}",
    "{n} = Node({o}, {p})",
    "{n} = {number}",
    "{n} = {o}",
    "del {n}",
    "{n}.append({o})",
    "{n}['y'] = {o}",
    "Node.rate = {number}",
)


@pytest.mark.parametrize("seed", range(4))
def test_a_slot_finds_what_the_program_had_at_each_submission(draft, seed):
    """However a module changes, in whatever order tasks come: objects with names are the same ones."""
    chosen = random.Random(seed)
    execute(draft, SHOW)
    orders, shown = [], []
    for _ in range(14):
        for _ in range(4):
            n, o, p = chosen.choice(NAMES), *chosen.choices([*NAMES, "Node"], k=2)
            with contextlib.suppress(NameError, AttributeError, TypeError):
                change = chosen.choice(CHANGES).format(n=n, o=o, p=p, number=chosen.randrange(5))
                execute(draft, change)
        with contextlib.suppress(RecursionError):  # a function that calls itself
            shown.append(draft.show())
            orders.append(order(draft.show))
    plan = [*range(len(orders)), *chosen.choices(range(len(orders)), k=20)]

    assert run_in_slot([orders[number] for number in plan]) == [shown[number] for number in plan]
