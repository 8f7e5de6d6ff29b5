"""The writers of the state of tasks, lanes and slots: state that has a table changes through the table.

The lists below say who still does so beside it, each with the reason. They may become shorter.
"""

import ast
from collections.abc import Iterator
from typing import get_type_hints

from taskmesh.core.hub.states import TRANSITIONS, Cause, State, TaskRecord
from tests.architecture.source import FunctionNode, python_files, tree

# Who assigns a `state`, and why there. What is not a machine's own beginning or its `move` has a reason.
STATES = {
    "Ledger.move": "one transition of a task, by the table",
    "Lane.__init__": "the beginning",
    "Slot.__init__": "the beginning",
    "StateMachine.move": "one transition of a lane or slot, by the table",
    "PoolMachine.__init__": "the beginning; a pool's three states are words that its beats say",
    "PoolMachine._command": "ready and paused, by an operator's command",
    "PoolMachine._drain": "draining, which is for good",
    "Ventilator._load": "PUSH of a batch: a call for each task would double its cost",
    "Ventilator._push_one": "PUSH of a task alone, on the shortest way there is",
    "Collector.done": "SUCCEED of a batch: the same, `_settle` counts the transitions of all",
}
# The transitions that are made without `Ledger.move`.
SPELT_OUT = {
    (State.QUEUED, Cause.PUSH): State.SENT,
    (State.SENT, Cause.SUCCEED): State.SUCCEEDED,
    (State.RUNNING, Cause.SUCCEED): State.SUCCEEDED,
}
# Who assigns another field of a task's record outside the ledger: which, and why there.
FIELDS = {
    "Backlog.push_front": ("lined_up", "the backlog's own mark: a record has one entry at most"),
    "Collector._crashed": ("crashes", "a charge; policies of retrying are to stand beside the ledger"),
    "Collector._erred": ("errors", "a charge"),
    "Collector.died_with": ("losses", "a charge"),
    "Collector.done": ("payload", "the batch of successes: as `Ledger.drop` does it"),
    "Collector.failed_before": (
        "attempt returns session",
        "a failure that came before its task: as if adopted",
    ),
    "Collector.not_started": ("returns", "an attempt that was handed back"),
    "Intake._enter": ("lined_up", "what was submitted to an earlier hub does not stand in line at once"),
    "Intake._forget": ("spec", "the spec of a chunk that is run whole after all may have come anew"),
    "Lineup.head": ("lined_up", "the backlog's own mark"),
    "Lineup.put_back": ("lined_up", "the backlog's own mark"),
    "Lineup.take": ("lined_up", "the backlog's own mark"),
    "Lineup.tidy": ("lined_up", "the backlog's own mark"),
    "PoolSessions._survived": ("losses", "a charge taken back: the pool had not died"),
    "PoolSessions.adopt": ("attempt returns session", "the attempt that a pool holds becomes the task's"),
    "Recovery.release": (
        "lined_up",
        "what waited for the pools of an earlier hub stands in line from now on",
    ),
    "Ventilator._load": ("attempt session", "the batch that is pushed"),
    "Ventilator._push_one": ("attempt lined_up session", "the task that is pushed alone"),
}
OTHERS = {"failure", "progress", "held", "results", "extra"}  # messages with fields of the same names


def assignments() -> Iterator[tuple[str, str, str]]:
    """Yield (class and function, object, attribute) for each assignment to an attribute in the core."""
    for path in python_files("taskmesh/core"):
        for scope in ast.walk(tree(path)):
            for function in scope.body if isinstance(scope, ast.ClassDef) else ():
                if isinstance(function, FunctionNode) and isinstance(scope, ast.ClassDef):
                    for target in targets(function):
                        yield f"{scope.name}.{function.name}", ast.unparse(target.value), target.attr


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
        for path in python_files("taskmesh/core")
        for call in ast.walk(tree(path))
        if isinstance(call, ast.Call) and any(keyword.arg == "state" for keyword in call.keywords)
    ]

    assert [place.partition(":")[0] for place in found] == ["collector.py"], found


def test_transitions_that_are_spelt_out_stand_in_the_table():
    assert {move: TRANSITIONS.get(move) for move in SPELT_OUT} == SPELT_OUT


def test_nobody_else_writes_a_record():
    fields = get_type_hints(TaskRecord).keys() - {"state"}
    found: dict[str, set[str]] = {}
    for where, what, attribute in assignments():
        if attribute in fields and what != "self" and what not in OTHERS and not where.startswith("Ledger."):
            found.setdefault(where, set()).add(attribute)

    assert found == {where: set(names.split()) for where, (names, _) in FIELDS.items()}
