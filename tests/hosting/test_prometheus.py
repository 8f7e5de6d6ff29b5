"""Metrics of real programs, and alerts and board that read them, as Prometheus' own tool judges them."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taskmesh import Mesh
from tests.cli.test_side_port import HTTP, TCP, side_of
from tests.harness.programs import Programs
from tests.harness.requirement import require
from tests.harness.side_port import ask
from tests.harness.waiting import wait_until
from tests.hosting import workload

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RULES = EXAMPLES / "prometheus" / "rules.yml"
BOARD = EXAMPLES / "grafana" / "taskmesh.json"
PARTS = re.compile(r"_(bucket|sum|count)$")
"""Ends of the names that a histogram's samples have."""


def promtool(*arguments: str, text: str | None = None) -> None:
    """Run it; what it finds wrong fails the test."""
    tool = shutil.which("promtool") or shutil.which("promtool", path=str(Path(sys.executable).parent))
    require(tool, "promtool: `make integration` takes it out of Debian's package prometheus")
    done = subprocess.run(
        [str(tool), *arguments], input=text, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.fixture
def metrics(programs: Programs, tmp_path: Path) -> list[str]:
    """The metrics of a hub and of a worker that have had tasks of all ends."""
    hub = programs.start("hub", "--bind", TCP, "--journal", str(tmp_path / "journal"), *HTTP, "--json")
    address = hub.ready()["gateway"]
    worker = programs.worker(address, "--name", 'the"first"', *HTTP)
    with Mesh(address) as mesh:
        assert list(mesh.map(workload.add, range(50), range(50)))[-1] == 98
        assert mesh.submit(workload.refuse, "no").exception(20)
        held = mesh.with_options(sink="rows").submit(workload.add, 1, 2)  # until somebody takes it
        lonely = mesh.with_options(queue='nobody\\"s').submit(workload.add, 1, 2)
        wait_until(lambda: held.accepted and lonely.accepted)
        found = [ask(f"{side_of(program)}/metrics")[1] for program in (hub, worker)]
        mesh.cancel([held, lonely])
    return found


def test_promtool_finds_nothing_wrong_with_the_metrics(metrics):
    for text in metrics:
        promtool("check", "metrics", text=text)


def test_alerts_and_board_read_metrics_that_are_there(metrics):
    there = {line.split()[2] for text in metrics for line in text.splitlines() if line.startswith("# TYPE")}
    read = {
        name if name in there else PARTS.sub("", name)
        for file in (RULES, RULES.with_name("rules_test.yml"), BOARD)
        for name in re.findall(r"taskmesh_\w+", file.read_text())
    }

    assert len(there & read) > 20
    assert read <= there


def test_alerts_fire_when_they_are_to():
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(RULES.with_name("rules_test.yml")))


def test_the_board_asks_what_prometheus_understands(tmp_path):
    """As rules, which promtool reads: it knows no boards."""
    board = json.loads(BOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = [
        {"record": f"board:{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, expr in enumerate(asked)
    ]
    file = tmp_path / "board.yml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))

    assert len(asked) > 20
    promtool("check", "rules", str(file))
