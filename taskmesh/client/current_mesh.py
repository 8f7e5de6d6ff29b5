"""The mesh of `f.submit()`: the innermost open one of this context or process, or the only one there."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from taskmesh.errors import ForkedMeshError, NoMesh
from taskmesh.pool.slots.nested import in_slot

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

_made: WeakValueDictionary[int, Submitter] = WeakValueDictionary()
"""All meshes of this process, by their ids: a notebook has `mesh = Mesh()` in a cell, and no `with` block."""


def made(mesh: Submitter) -> None:
    """Have a new mesh found while it is the only one that is not closed."""
    _made[id(mesh)] = mesh


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
    """Return the innermost open mesh, else the only one of the process.

    Raises:
        NoMesh: there is none, or more than one without a `with` block.
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
    return _only_mesh()


def _only_mesh() -> Submitter:
    """Return the mesh of this process that no `with` block has entered, if there is one only.

    In a slot, tasks have the mesh that runs them. A forked child cannot use what its parent has opened.
    """
    usable = [] if in_slot() else open_meshes()
    if len(usable) == 1:
        return usable[0]
    if usable:
        raise NoMesh(
            f"{len(usable)} meshes are open here, and none by `with`: call submit() of one of them, as in "
            "mesh.submit(f, x), or close the others"
        )
    raise NoMesh("no mesh is open here: submit inside `with Mesh() as mesh:`, or call mesh.submit()")


def open_meshes() -> list[Submitter]:
    """Return the meshes of this process that are not closed."""
    references = _made.valuerefs()  # a copy: other threads make meshes, too
    meshes = [mesh for reference in references if (mesh := reference()) is not None]
    return [mesh for mesh in meshes if is_usable(mesh._client)]


def is_usable(client: Client) -> bool:
    """Return whether a client is neither closed nor that of the process that has forked this one."""
    return not (client.closed or isinstance(client.table.refusal, ForkedMeshError))
