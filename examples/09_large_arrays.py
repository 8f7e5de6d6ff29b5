"""Large arrays: `mesh.put` sends one once to each pool of workers, however many tasks read it."""

import numpy as np

from taskmesh import Mesh, gather, task

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@task
def column_mean(table: Array, column: int) -> float:
    return float(table[:, column].mean())  # the worker maps the array into its memory


@task
def fill(table: Array, value: float) -> float:
    table[:] = value  # the array is this task's own: what it writes, no other task sees
    return float(table[0, 0])


if __name__ == "__main__":
    rows = np.arange(4_000_000, dtype=np.float64).reshape(-1, 4)  # 32 MB
    with Mesh(workers=2) as mesh:
        table = mesh.put(rows)
        means = gather([column_mean.submit(table, column) for column in range(4)])
        print(means)  # [1999998.0, 1999999.0, 2000000.0, 2000001.0]
        print(fill.submit(table, -1.0).result())  # -1.0
        print(column_mean.submit(table, 0).result())  # 1999998.0

        # An array may be an argument or a result, too: it is not copied while it is pickled.
        print(mesh.submit(np.cumsum, rows[:, 0]).result().shape)  # (1000000,)
