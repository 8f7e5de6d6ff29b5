"""Many small items: `map` sends them in chunks, and gives results in the order of the items."""

from itertools import count, islice

from taskmesh import Mesh, task


@task
def square(x: int) -> int:
    return x * x


@task
def inverse(x: int) -> float:
    return 1 / x


if __name__ == "__main__":
    with Mesh(workers=2) as mesh:
        print(sum(mesh.map(square, range(100_000))))  # 333328333350000
        print(list(mesh.starmap(pow, [(2, 5), (3, 5)])))  # [32, 243]

        # With `buffersize` the items are read as results are taken: there may be any number of them.
        endless = mesh.map(square, count(), buffersize=1000)
        print(list(islice(endless, 5)))  # [0, 1, 4, 9, 16]

        # An item that fails raises its error in its place, or is an error among the results.
        results = list(mesh.map(inverse, [1, 0, 4], return_exceptions=True))
        print(results)  # [1.0, ZeroDivisionError('division by zero'), 0.25]
