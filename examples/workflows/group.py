"""Group: tasks that run side by side, and all of their results in order."""

from taskmesh import Mesh, gather, task


@task
def square(x: int) -> int:
    return x * x


with Mesh(workers=2) as mesh:
    futures = [square.submit(x) for x in range(5)]
    print(gather(futures, timeout=30))  # [0, 1, 4, 9, 16]
    print(sum(future.done() for future in futures))  # 5
    print(list(mesh.map(square, range(5))))  # [0, 1, 4, 9, 16]
