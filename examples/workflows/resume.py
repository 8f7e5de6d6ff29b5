"""Resume: a task that waits for its own tasks without a worker, and goes on where it was."""

from taskmesh import Mesh, WaitFor, task


@task
def measure(day: int) -> int:
    return day * day


@task(resume=True, retries=3)
def month(days: int) -> int:
    measured = [measure.submit(day) for day in range(days)]  # submitted once, however often this runs
    if not all(future.done() for future in measured):
        raise WaitFor(*measured)
    return sum(future.result() for future in measured)


with Mesh(workers=2):
    print(month.submit(30).result(timeout=30))  # 8555
