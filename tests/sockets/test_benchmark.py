from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_the_sockets_runs_and_reports_every_row(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.sockets",
        "--repeats",
        "2",
        "--count",
        "500",
        "--out",
        str(out),
    ]

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)

    assert finished.returncode == 0, finished.stderr
    rows = {row["row"]: row for row in json.loads(out.read_text(encoding="utf-8"))}
    kinds = ("raw", "push-pull", "scatter-gather")
    assert set(rows) == {f"{kind}{way}" for kind in kinds for way in ("", " drained")}
    assert all(row["rate"] > 0 and row["lowest"] <= row["ratio"] <= row["highest"] for row in rows.values())
