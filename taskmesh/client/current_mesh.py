"""The mesh of `f.submit()`: the innermost one that is open in this context, else in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING

from taskmesh.errors import NoMesh

if TYPE_CHECKING:
    from taskmesh.client.submitter import Submitter

_here: ContextVar[tuple[Submitter, ...]] = ContextVar("taskmesh_meshes", default=())
_delivers: ContextVar[Callable[[], Submitter] | None] = ContextVar("taskmesh_delivers", default=None)
"""The mesh whose callback thread this is. It does not hold the mesh, which ends when nobody holds it."""
_everywhere: list[Submitter] = []
"""Meshes in the order they were entered: what threads find that were started inside the `with` block."""


def enter(mesh: Submitter) -> None:
    """Make the mesh the innermost one."""
    _here.set((*_here.get(), mesh))
    _everywhere.append(mesh)


def delivering(mesh: Callable[[], Submitter]) -> Context:
    """Return the context of a callback thread, in which `mesh()` is the current mesh."""
    context = Context()
    context.run(_delivers.set, mesh)
    return context


def leave(mesh: Submitter) -> None:
    """Remove a mesh that closes; it need not be the innermost one, nor this the context that entered it."""
    _here.set(tuple(other for other in _here.get() if other is not mesh))
    if mesh in _everywhere:
        _everywhere.remove(mesh)


def current_mesh() -> Submitter:
    """Return the innermost open mesh.

    Raises:
        NoMesh: there is none.
    """
    here = _here.get()
    if here:
        mesh = here[-1]
        if not mesh._client.closed:
            return mesh
        for mesh in reversed(here):
            if not mesh._client.closed:
                return mesh
    if (delivers := _delivers.get()) is not None and not (mesh := delivers())._client.closed:
        return mesh
    for mesh in reversed(_everywhere):
        if not mesh._client.closed:
            return mesh
    raise NoMesh("no mesh is open here: submit inside `with Mesh() as mesh:`, or call mesh.submit()")
