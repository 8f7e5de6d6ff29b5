"""The writers of the state of tasks, lanes and slots: state that has a table changes through the table.

The lists below say who still does so beside it, each with the reason. They may become shorter.
"""

import ast
from collections.abc import Iterator
from functools import cache
from typing import get_type_hints

from taskmesh.hub.machine.books.states import TRANSITIONS, Cause, State, TaskRecord
from taskmesh.pool.machine.slots import Slot
from tests.architecture.source import FunctionNode, nodes, python_files

# Who assigns a `state`, and why there. What is not a machine's own beginning or its `move` has a reason.
STATES = {
    "Ledger.move": "one transition of a task, by the table",
    "Ledger.push": "PUSH of a lane message: a call for each task would double its cost",
    "Ledger.succeed": "SUCCEED of a run: the same",
    "HubMachine.__init__": "the books of a hub, which are called so too",
    "Lane.__init__": "the beginning",
    "Slot.__init__": "the beginning",
    "StateMachine.move": "one transition of a lane or slot, by the table",
    "PoolMachine.__init__": "the beginning; a pool's three states are words that its beats say",
    "PoolMachine._on_command": "ready and paused, by an operator's command",
    "PoolMachine._drain": "draining, which is for good",
}
# The transitions that are made without `Ledger.move`.
SPELT_OUT = {
    (State.QUEUED, Cause.PUSH): State.SENT,
    (State.SENT, Cause.SUCCEED): State.SUCCEEDED,
    (State.RUNNING, Cause.SUCCEED): State.SUCCEEDED,
}
# The field of a record that its queue owns: whether it has an entry there. The others are the ledger's.
MARK = "lined_up"
QUEUES = ("Backlog.", "RouteQueue.", "Ledger.accept")
# Counters that are kept by hand, and the class that alone writes them.
COUNTERS = {
    ("account", "tasks"): "Ledger",
    ("account", "held"): "Ledger",
    ("account", "size"): "Ledger",
    ("owner", "size"): "Ledger",
    ("entry", "live"): "Ledger",
    ("record.spec", "live"): "Ledger",
    ("lane", "outstanding"): "Lane",
    ("lane", "counts"): "Lane",
    ("ledger", "size"): "Ledger",
    ("ledger", "finished"): "Ledger",
    ("ledger", "accepted"): "Ledger",
    ("session", "size"): "ClientSession",
}
MACHINES = ("taskmesh/core", "taskmesh/hub/machine", "taskmesh/pool/machine", "taskmesh/client/machine")
SLOTS = {"slot", "parent", "other", "idle"}  # names that a slot has in the pool's modules
OTHERS = {"failure", "progress", "held", "results", "extra", "run"}  # messages with fields of the same names


@cache
def assignments() -> tuple[tuple[str, str, str], ...]:
    """Return (class or module and function, object, attribute) of each assignment in the core."""
    return tuple(
        (f"{getattr(scope, 'name', path.stem)}.{function.name}", ast.unparse(target.value), target.attr)
        for path in python_files(*MACHINES)
        for scope in nodes(path)
        if isinstance(scope, ast.ClassDef | ast.Module)
        for function in scope.body
        if isinstance(function, FunctionNode)
        for target in targets(function)
    )


def targets(function: ast.AST) -> Iterator[ast.Attribute]:
    """Yield every attribute that a function assigns."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def test_nobody_else_assigns_a_state():
    found = {where for where, _, attribute in assignments() if attribute == "state"}

    assert found == STATES.keys(), "use `move`; who does not any more goes from the list"


def test_no_state_is_given_to_a_copy_but_that_of_a_chunk_that_is_kept():
    """`replace(record, state=...)` would be another way round the table."""
    found = [
        f"{path.name}:{call.lineno}"
        for path in python_files(*MACHINES)
        for call in nodes(path)
        if isinstance(call, ast.Call) and any(keyword.arg == "state" for keyword in call.keywords)
    ]

    assert [place.partition(":")[0] for place in found] == ["states.py"], found


def test_transitions_that_are_spelt_out_stand_in_the_table():
    assert {move: TRANSITIONS.get(move) for move in SPELT_OUT} == SPELT_OUT


def test_nobody_else_writes_a_record():
    fields = get_type_hints(TaskRecord).keys() - {"state"}
    found = {
        f"{where}: {attribute}"
        for where, what, attribute in assignments()
        if attribute in fields
        and what != "self"
        and what not in OTHERS
        and not where.startswith(QUEUES if attribute == MARK else "Ledger.")
    }

    assert found == set()


def test_a_counter_has_one_writer():
    """A method of another class that changes it would have to know all that goes with it."""
    found = {
        where
        for where, what, attribute in assignments()
        for key in {(what, attribute), (what.rpartition(".")[2].removeprefix("_"), attribute)}
        if key in COUNTERS and not where.startswith(f"{COUNTERS[key]}.")
    }

    assert found == set()


def test_a_slot_alone_writes_its_attributes():
    """Any other writer would have to know what goes with them: an idle slot is not to be killed."""
    own = vars(Slot(0)).keys() - {"state"}
    found = {
        f"{where}: {what}.{attribute}"
        for where, what, attribute in assignments()
        if attribute in own and what.rsplit(".", maxsplit=1)[-1].removeprefix("self._") in SLOTS
    }

    assert found == set()
