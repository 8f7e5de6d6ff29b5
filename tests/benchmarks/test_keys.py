"""The benchmark of what keys cost runs, and reports every row."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_every_row_is_measured_with_and_without_keys(tmp_path: Path) -> None:
    out = tmp_path / "keys.json"
    command = [sys.executable, "-m", "benchmarks.keys", "--quick", "--repeats", "2", "--out", str(out)]

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=160, check=False)

    assert finished.returncode == 0, finished.stderr
    rows = {row["row"]: row for row in json.loads(out.read_text(encoding="utf-8"))["rows"]}
    assert set(rows) == {"no-op", "echo of bytes, 1 MB", "connections"}
    for row in rows.values():
        assert row["lowest"] <= row["ratio"] <= row["highest"]
        assert min(row["with"], row["without"]) > 0
        assert [len(turns) for turns in row["turns"].values()] == [2, 2]
