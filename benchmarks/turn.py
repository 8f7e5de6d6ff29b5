"""One turn: a fresh process that measures one row of one contender and writes what it found as JSON.

A process of its own for each turn, because futures, threads and imports of one contender slow down the next.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import machine
from benchmarks.contender import load
from benchmarks.rows import Scale, WrongAnswer, measure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turn", description=__doc__)
    parser.add_argument("contender")
    parser.add_argument("row")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.die_with_parent()
    machine.adopt_orphans()
    try:
        contender = load(options.contender)()
        found = measure(options.contender, contender, options.row, Scale(options.workers, options.quick))
    except WrongAnswer as wrong:
        print(f"wrong answer: {wrong}", file=sys.stderr)
        return 3
    report = {
        "figures": found.figures,
        "seconds": found.window.seconds,
        "foreign_cpus": found.window.foreign_cpus,
        "detail": found.detail,
    }
    options.out.write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
