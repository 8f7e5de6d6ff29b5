"""The mesh of `f.submit()`: the innermost one that is open in this context, else in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING

from taskmesh.errors import NoMesh

if TYPE_CHECKING:
    from taskmesh.client.client import Client
    from taskmesh.client.submitter import Submitter

_here: ContextVar[tuple[tuple[Submitter, Client], ...]] = ContextVar("taskmesh_meshes", default=())
_delivers: ContextVar[tuple[Callable[[], Submitter], Client] | None] = ContextVar(
    "taskmesh_delivers", default=None
)
"""The mesh whose callback thread this is. The entry must not keep the mesh alive."""
_everywhere: list[tuple[Submitter, Client]] = []
"""Meshes in the order they were entered, which threads find that were started inside the `with` block."""


def enter(mesh: Submitter, client: Client) -> None:
    """Make a mesh the innermost one, until its client closes."""
    _here.set((*_here.get(), (mesh, client)))
    _everywhere.append((mesh, client))


def delivering(mesh: Callable[[], Submitter], client: Client) -> Context:
    """Return the context of a client's callback thread, in which `mesh()` is the current mesh."""
    context = Context()
    context.run(_delivers.set, (mesh, client))
    return context


def leave(mesh: Submitter, client: Client) -> None:
    """Remove a mesh that closes; it need not be the innermost one, nor this the context that entered it."""
    _here.set(tuple(entered for entered in _here.get() if entered[0] is not mesh))
    if (mesh, client) in _everywhere:
        _everywhere.remove((mesh, client))


def current_mesh() -> Submitter:
    """Return the innermost open mesh.

    Raises:
        NoMesh: there is none.
    """
    here = _here.get()
    if here:
        mesh, client = here[-1]
        if not client.closed:
            return mesh
        for mesh, client in reversed(here):
            if not client.closed:
                return mesh
    if (delivers := _delivers.get()) is not None and not delivers[1].closed:
        return delivers[0]()
    for mesh, client in reversed(_everywhere):
        if not client.closed:
            return mesh
    raise NoMesh("no mesh is open here: submit inside `with Mesh() as mesh:`, or call mesh.submit()")
