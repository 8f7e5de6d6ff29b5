"""Finalizer: a task that runs when all others have ended, well or badly, and sees how."""

from taskmesh import Mesh, Outcome, task


@task
def load(name: str) -> int:
    return {"a": 1, "b": 2}[name]


@task
def report(ends: list[Outcome[int]]) -> str:
    return ", ".join(str(end.state) for end in ends)


with Mesh(workers=2):
    loads = [load.submit(name) for name in "abc"]
    print(report.with_options(when="done").submit(loads).result(timeout=30))  # succeeded, succeeded, failed
