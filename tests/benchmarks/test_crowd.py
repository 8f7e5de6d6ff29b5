"""The benchmark of what many peers and tasks cost one hub runs, and reports every row."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).parents[2]
PEERS = {"joined, s", "share of a core", "share for each", "bytes for each"}
EXECUTORS = {
    "joined, s",
    "idle, share of a core",
    "waiting, share of a core",
    "partitions/s",
    "CPU for each, ms",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_row_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "crowd.json"
    command = [sys.executable, "-m", "benchmarks.crowd", "--quick", "--out", str(out)]

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)

    assert finished.returncode == 0, finished.stderr
    rows = {row["row"]: row["figures"] for row in json.loads(out.read_text(encoding="utf-8"))["rows"]}
    assert rows.keys() == {"20 idle clients", "10 idle pools", "20 Python workers", "5,000 queued tasks"}
    assert rows["20 idle clients"].keys() == PEERS
    assert rows["10 idle pools"].keys() == PEERS | {"no-ops without them, /s", "no-ops, /s"}
    assert rows["20 Python workers"].keys() == EXECUTORS
    queue = rows["5,000 queued tasks"]
    assert queue.keys() == {"accepted, /s", "bytes for each", "status, ms", "drained, /s"}
    assert all(figure > 0 for figure in queue.values())
