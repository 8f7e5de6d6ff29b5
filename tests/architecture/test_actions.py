"""Each action that a machine may want has a performer in its shell; each kind of action is in a union."""

import ast
from pathlib import Path
from types import UnionType
from typing import get_args

import msgspec
import pytest

from taskmesh.core import actions
from taskmesh.core.actions import ClientAction, HubAction, PoolAction
from tests.architecture.source import nodes


def performed(path: str) -> set[str]:
    """Return the actions that a shell's table has: keys of a dict, or what is put into it later."""
    found = set()
    for node in nodes(Path(path)):
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            keys = list(node.keys)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        found |= {
            key.attr for key in keys if isinstance(key, ast.Attribute) and ast.unparse(key.value) == "act"
        }
    return found


@pytest.mark.parametrize(
    ("union", "shell"),
    [
        (HubAction, "taskmesh/hub/shell.py"),
        (PoolAction, "taskmesh/pool/shell.py"),
        (ClientAction, "taskmesh/client/port/shell.py"),
    ],
    ids=["hub", "pool", "client"],
)
def test_a_shell_performs_every_action_of_its_machine(union: UnionType, shell: str):
    assert performed(shell) == {action.__name__ for action in get_args(union)}


def test_every_action_is_some_machine_s():
    kinds = {
        kind.__name__
        for kind in vars(actions).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == actions.__name__
    }
    unions = (*get_args(HubAction), *get_args(PoolAction), *get_args(ClientAction))

    assert kinds == {kind.__name__ for kind in unions}
