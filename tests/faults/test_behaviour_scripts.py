"""Where a user's code may live: a script without a guard, `python -c`, standard input, `__main__`."""

import subprocess
import sys

import pytest

from tests.harness.cluster import Cluster
from tests.harness.program import ROOT

pytestmark = pytest.mark.fault

PROGRAM = """
import dataclasses, enum, os
from taskmesh import Mesh, task

print("once")

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int
    colour: Colour = Colour.RED

class Refused(Exception):
    pass

FACTOR = 3

def scaled(point):
    assert type(point) is Point and isinstance(point, Point) and point.colour is Colour.RED
    return Point(point.x * FACTOR)

@task
def doubled(point: Point) -> Point:
    return Point(2 * point.x)

def refuse(point):
    raise Refused(point)

with Mesh({address}) as mesh:
    point = mesh.submit(scaled, Point(2)).result(20)
    assert isinstance(point, Point) and point == Point(6), point
    assert point.colour is Colour.RED
    assert doubled.submit(point).result(20) == Point(12)
    assert doubled(Point(1)) == Point(2)
    assert list(mesh.map(lambda p: p.x + FACTOR, [Point(1), Point(2)])) == [4, 5]
    FACTOR = 10
    assert mesh.submit(scaled, Point(2)).result(20) == Point(20), "a changed global is seen"
    error = mesh.submit(refuse, Point(9)).exception(20)
    assert isinstance(error, Refused) and error.args == (Point(9),), repr(error)
    assert "in refuse" in str(error.__cause__), error.__cause__
    assert mesh.submit(os.getpid).result(20) != os.getpid()
print("fine")
"""


def _run(line, folder, text=None):
    done = subprocess.run(
        [sys.executable, *line],
        input=text,
        capture_output=True,
        text=True,
        timeout=50,
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\nfine\n", "")


@pytest.mark.parametrize(
    ("how", "hub"),
    [
        ("script", "embedded"),
        ("-c", "embedded"),
        ("stdin", "embedded"),
        ("module", "embedded"),
        ("script", "remote"),
    ],
)
def test_program_without_a_guard(request, tmp_path, how, hub):
    address = ""
    if hub == "remote":
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.start_hub()
        cluster.start_workers(1)
        address = repr(cluster.address)
    text = PROGRAM.format(address=address or "workers=2")
    (tmp_path / "program.py").write_text(text)

    match how:
        case "script":
            _run(["program.py"], tmp_path)
        case "-c":
            _run(["-c", text], tmp_path)
        case "stdin":
            _run(["-"], tmp_path, text)
        case "module":
            _run(["-m", "program"], tmp_path)
