"""A fresh interpreter on its way to a first result: `python -m benchmarks.startup CONTENDER WORKERS`.

Says when it had the result, by the monotonic clock that all processes share, then idles until its input ends.
"""

from __future__ import annotations

import sys
import time

from benchmarks.contender import load
from benchmarks.workloads import noop


def main(name: str, workers: int) -> None:
    contender = load(name)()
    contender.open(workers)
    try:
        if contender.round_trip(noop, 1) != 1:
            raise SystemExit("the first result is wrong")
        print("first result", time.monotonic(), flush=True)
        sys.stdin.read()
    finally:
        contender.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
