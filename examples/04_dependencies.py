"""Tasks that depend on others: pass a future where its value would stand.

Type checkers want `lazy(future)` there, which is the future itself with the type of its value.
"""

from taskmesh import Mesh, Outcome, task
from taskmesh.errors import DependencyError


@task
def load(name: str) -> int:
    return {"apples": 3, "pears": 4}[name]


@task
def price(pieces: int) -> float:
    return pieces * 0.5


@task
def total(prices: list[float]) -> float:
    return sum(prices)


@task
def report(ends: list[Outcome[int]]) -> str:
    return ", ".join(str(end.state) for end in ends)


if __name__ == "__main__":
    with Mesh(workers=2):
        # A chain. The program waits for nothing but the last result.
        print(price.submit(load.submit("apples")).result())  # 1.5

        # A group, and a task that gets all of its results.
        prices = [price.submit(load.submit(name)) for name in ("apples", "pears")]
        print(total.submit(prices).result())  # 3.5

        # What depends on a task that fails does not start.
        loads = [load.submit("apples"), load.submit("plums")]
        try:
            price.submit(loads[1]).result()
        except DependencyError as error:
            print(repr(error.__cause__))  # KeyError('plums')

        # A task that runs however the others end.
        print(report.with_options(when="done").submit(loads).result())  # succeeded, failed
