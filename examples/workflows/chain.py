"""Chain: each task takes the result of the task before it."""

from taskmesh import Mesh, task


@task
def fetch(name: str) -> str:
    return f"{name}: 3 apples"


@task
def count(text: str) -> int:
    return int(text.split()[1])


@task
def price(apples: int) -> float:
    return apples * 0.5


with Mesh(workers=2):
    print(price.submit(count.submit(fetch.submit("basket"))).result(timeout=30))  # 1.5
