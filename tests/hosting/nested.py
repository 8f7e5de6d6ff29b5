"""A task that submits tasks, for pools that find it by name."""

from taskmesh import task


@task
def square(number: int) -> int:
    return number * number


@task
def squares(count: int) -> int:
    return sum(future.result() for future in [square.submit(number) for number in range(count)])
