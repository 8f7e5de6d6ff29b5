"""`python -m tests.chaos`: random faults of real processes. See CONTRIBUTING.md.

Exit status: 0 when every promise was kept, 1 when one was broken, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.episode import Episode
from tests.chaos.errands import KINDS
from tests.harness.leaks import mark_run

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Strike a hub, pools and clients at random from a seed, and judge what they have made of their tasks."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=main.__doc__)
    parser.add_argument("--seed", type=int, metavar="N", help="of the first episode (default: by chance)")
    parser.add_argument(
        "--episodes", type=int, default=1, metavar="N", help="one after the other (default 1)"
    )
    parser.add_argument(
        "--seconds", type=float, default=20, metavar="S", help="of strikes in each (default 20)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--gentle", action="store_true", help="nothing that may make a task run twice")
    how.add_argument("--harsh", action="store_true", help="hub, pools and slots are killed too (default)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=sorted(KINDS),
        help="tasks of this kind; may be repeated",
    )
    parser.add_argument("--keys", action="store_true", help="everybody shows keys")
    options = parser.parse_args(arguments)
    first = random.SystemRandom().getrandbits(20) if options.seed is None else options.seed
    mark_run()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED))  # by way of what ends the processes
    failed = [
        seed
        for seed in range(first, first + options.episodes)
        if not play(seed, options.seconds, harsh=not options.gentle, only=options.only, keys=options.keys)
    ]
    seeds = f": seeds {', '.join(map(str, failed))}" if failed else ""
    say(f"{options.episodes} episodes, {len(failed)} failed{seeds}")
    return bool(failed)


def play(seed: int, seconds: float, *, harsh: bool, only: Sequence[str], keys: bool = False) -> bool:
    """Play one episode; whether all was well. Its logs are kept if not."""
    how = "harsh" if harsh else "gentle"
    kinds = "".join(f" --only {kind}" for kind in only) + " --keys" * keys
    say(f"--- python -m tests.chaos --seed {seed} --seconds {seconds:g} --{how}{kinds}")
    folder = Path(tempfile.mkdtemp(prefix=f"taskmesh-chaos-{how}-{seed}-"))
    problems = Episode(folder, seed, seconds, harsh=harsh, say=say, only=only, keys=keys).run()
    for problem in problems:
        say(f"FAILED: {problem}")
    if problems:
        say(f"logs: {folder}")
    else:
        shutil.rmtree(folder)
    return not problems


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
