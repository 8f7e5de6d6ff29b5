"""The benchmark of what a journal costs runs, and reports every row of every tier."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.redis_server import redis_client
from tests.harness.requirement import require

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).parents[2]
TIERS = {"memory", "file", "file, strict", "Redis", "Redis, strict"}


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_every_row_is_measured_in_every_tier(tmp_path: Path) -> None:
    from benchmarks.redis_server import program

    redis_client()
    require(program(), "redis-server: apt install redis-server")
    out = tmp_path / "journal.json"
    command = [sys.executable, "-m", "benchmarks.journal", "--quick", "--repeats", "1", "--out", str(out)]

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)

    assert finished.returncode == 0, finished.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert {row["tier"] for row in rows} == TIERS
    for row in rows:
        assert row["median"] > 0
        assert len(row["turns"]) == 1
    measured = {row["row"] for row in rows if row["tier"] == "Redis, strict"}
    assert measured == {"accepts", "accepts of 8", "lone", "results", "waiting"}
    kept = {row["figure"] for row in rows if row["row"] == "waiting" and row["tier"] == "Redis"}
    assert {"reload, s", "bytes in the store", "bytes of the AOF"} <= kept
