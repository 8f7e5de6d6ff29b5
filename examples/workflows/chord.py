"""Chord: a task that starts when all tasks of a group have succeeded, and gets their results."""

from taskmesh import Mesh, task


@task
def square(x: int) -> int:
    return x * x


@task
def total(values: list[int]) -> int:
    return sum(values)


with Mesh(workers=2):
    print(total.submit([square.submit(x) for x in range(100)]).result(timeout=30))  # 328350
