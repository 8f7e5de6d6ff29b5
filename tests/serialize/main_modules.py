"""Run as __main__ by test_code: one object of this program is one in a slot, and no other program's."""

import functools
import subprocess
import sys

from taskmesh import Mesh, task

loads = []


@functools.cache
def model():
    loads.append(len(loads))
    return object()


@task
@functools.cache
def started():
    loads.append("started")
    return len(loads)


def ask_started():
    return started()


class Answer:
    pass


def helper():
    return "old"


def pid():
    return id(model()), loads


@task
def infer(_x=None):
    return id(model()), loads


def answer():
    return Answer()


def are_answers(one, other):
    return type(one) is type(other) is Answer


def told(_x):
    return helper()


def ask_elsewhere(address):
    """Ask the slot of another program's mesh."""
    with Mesh(address) as mesh:
        print(mesh.submit(pid).result(50))  # noqa: T201


def main():
    global helper  # noqa: PLW0603
    with Mesh(workers=1, bind="tcp://127.0.0.1:0") as mesh:
        futures = [mesh.submit(pid), mesh.submit(infer), mesh.submit(functools.partial(infer, 3))]
        futures += [mesh.submit(lambda: infer(5)), mesh.submit(pid)]
        found = [future.result(20) for future in futures]
        found += mesh.map(infer, range(2))
        assert found == [found[0]] * 7, found
        assert found[0][1] == [0], "it was loaded once"

        assert {mesh.submit(fn).result(20) for fn in (started, ask_started, started)} == {2}
        assert mesh.submit(are_answers, mesh.submit(answer), mesh.submit(answer)).result(20)
        assert type(mesh.submit(answer).result(20)) is Answer

        before = [mesh.submit(told, x) for x in range(3)]

        def helper():
            return "new"

        after = mesh.map(told, range(3))
        assert [future.result(20) for future in before] == ["old"] * 3
        assert list(after) == ["new"] * 3
        assert mesh.submit(pid).result(20) == (found[0][0], [0, "started"]), "all else is as it was"

        command = [sys.executable, "-m", "tests.serialize.main_modules", mesh.address]
        other = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
        theirs, loaded = eval(other.stdout)  # noqa: S307  what it has printed
        assert theirs != found[0][0]
        assert loaded == [0], "another program has a model of its own"
    print("all held")  # noqa: T201


if __name__ == "__main__":
    ask_elsewhere(sys.argv[1]) if sys.argv[1:] else main()
