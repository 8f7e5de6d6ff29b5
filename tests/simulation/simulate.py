"""The simulation on the command line: `python -m tests.simulation --seeds 100000`.

Without `--start` each run plays seeds that no run has played before, and prints the first: seeds that are the
same each time miss whatever happens once in more seeds than they are.

Exit status: 0 when every promise was kept, 1 when a seed broke one, 2 when something was tried too seldom.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.simulation.campaign import Tally, play_all
from tests.simulation.simulation import SimulationFailure, World

FRESH_BITS = 40
"""Bits of a first seed that chance picks: two runs hardly ever share a seed."""
LEAST = 20
ENOUGH = 2000
"""Seeds from which on every fault and transition must have happened LEAST times."""


def main(arguments: list[str] | None = None) -> int:
    """Plays seeds; prints what failed with the command that plays it again."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=2000, metavar="N", help="how many (default 2000)")
    parser.add_argument("--start", type=int, metavar="S", help="the first (default: by chance, printed)")
    parser.add_argument(
        "--processes", type=int, default=0, metavar="P", help="how many at once (default: all)"
    )
    parser.add_argument("--trace", action="store_true", help="print every event and action of the first seed")
    options = parser.parse_args(arguments)
    start = random.SystemRandom().getrandbits(FRESH_BITS) if options.start is None else options.start
    if options.trace:
        return _trace(start)
    _say(f"seeds from {start} on: --start {start} --seeds {options.seeds} plays them again")
    began, tally = time.monotonic(), Tally()
    for portion in play_all(start, options.seeds, processes=options.processes):
        tally.merge(portion)
        for failure in portion.failures.values():  # at once: a long run may be interrupted
            _say(f"\r{failure}")
        _say(f"\r{tally.seeds} seeds, {len(tally.failures)} failed", end="")
    seconds = time.monotonic() - began
    _say(f"\r{tally.seeds} seeds, {tally.tasks} tasks, {tally.steps} steps in {seconds:.0f} s: ", end="")
    _say(f"{len(tally.failures)} failed")
    if tally.failures:
        return 1
    rare = tally.rare(LEAST) if tally.seeds >= ENOUGH else []
    for line in rare:
        _say(f"not tried often enough: {line}")
    return 2 if rare else 0


def _trace(seed: int) -> int:
    world = World(seed, trace=True)
    try:
        world.run()
    except SimulationFailure as failure:
        _say("\n".join(world.trace))
        _say(str(failure))
        return 1
    _say("\n".join(world.trace))
    return 0


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()
