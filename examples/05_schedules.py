"""Schedules: the hub runs functions by the clock, and no program has to be there for that."""

from itertools import islice

from taskmesh import Mesh, Schedule, current_task, task


@task(schedule=Schedule("0 9 * * mon-fri", tz="Europe/Berlin"))
def remind() -> None:
    """Run at nine on working days: a program that imports this module and opens a mesh puts the schedule."""


@task(sink="reports", timeout=10)
def report(table: str) -> str:
    when = current_task().scheduled_for  # name files after this time, not after the present one
    return f"{table}, {when:%z}"


if __name__ == "__main__":
    with Mesh(workers=2) as mesh:
        mesh.schedule("report-users", report, "users", when=1)  # each second; a cron line works, too

        # Nobody waits for the results of a schedule. With `sink=` they go to whoever takes them.
        with mesh.sink("reports") as sink:
            print([outcome.result() for outcome in islice(sink, 2)])  # ['users, +0000', 'users, +0000']

        print(mesh.unschedule("report-users"))  # True
