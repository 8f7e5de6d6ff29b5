"""Approval: a task that waits for somebody outside the mesh: for a web hook, or for the command line."""

from taskmesh import Mesh, task


@task
def ship(order: str, approval: dict[str, str]) -> str:
    return f"{order} shipped, approved by {approval['by']}"


with Mesh(workers=2) as mesh:
    approval = mesh.promise("approve-42", expires=86400)
    shipped = ship.submit("order 42", approval)
    # in a web handler, in any program with a Mesh at this hub; or: taskmesh fulfil approve-42 '{"by": "ann"}'
    mesh.fulfil("approve-42", {"by": "ann"})
    print(shipped.result(timeout=30))  # order 42 shipped, approved by ann
