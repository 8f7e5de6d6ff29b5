"""The command line: take the turns, print the tables, write JSON, Markdown and the picture."""

from __future__ import annotations

import argparse
import compileall
import json
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.campaign import Turn, plan, sentence, take
from benchmarks.contender import CONTENDERS, DURABLE_PEERS, PEERS, REFERENCE, USUAL
from benchmarks.environment import peer_of, probe
from benchmarks.metrics import ROWS
from benchmarks.report import document, summarise
from benchmarks.rows import ROOT, Scale

RESULTS = ROOT / "benchmarks" / "results"
PEER_ROWS = {
    "noop",
    "map",
    "clients",
    "roundtrip",
    "fault",
    "bytes",
    "start",
}  # what docs/explanation/compared.md shows


def names(known: tuple[str, ...]) -> Any:
    """Make a converter for a list with commas that refuses what is not known."""

    def convert(text: str) -> list[str]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {','.join(known)}")
        return wanted

    return convert


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure taskmesh, raw pyzmq and peers turn by turn. Nothing is asserted about time.",
        epilog="Exit code: 0; 1 when a turn of raw or taskmesh failed or answered wrongly; 2: wrong usage.",
    )
    parser.add_argument("--rows", type=names(ROWS), default=list(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument(
        "--contenders",
        type=names(tuple(CONTENDERS)),
        help=f"some of {','.join(CONTENDERS)}; usual: {','.join(USUAL)}",
    )
    parser.add_argument(
        "--peers", action="store_true", help="the usual contenders and every peer that is installed"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a fifth of the work: to see that all runs")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder for NAME.json, NAME.md and NAME.png"
    )
    parser.add_argument("--name", help="default: latest or peers for a full run, else partial")
    return parser.parse_args()


def choose(options: argparse.Namespace) -> tuple[list[str], dict[str, dict[str, str]], dict[str, str]]:
    """Return the contenders to measure, the versions each peer runs with, and why others are left out.

    Raises:
        SystemExit: A contender was asked for by name and cannot run; the message says how to get it.
    """
    versions: dict[str, dict[str, str]] = {}
    left_out: dict[str, str] = {}
    chosen = []
    for name in options.contenders or list(USUAL + PEERS if options.peers else USUAL):
        found = probe(name)
        if found.missing and options.contenders:
            sys.exit(f"{name} cannot be measured: {found.missing} (make bench-peers installs the peers)")
        if found.missing:
            left_out[name] = found.missing
            print(f"{name} is left out: {found.missing}")
            continue
        chosen.append(name)
        if peer_of(name) in (*PEERS, *DURABLE_PEERS):
            versions[name] = found.packages
    return chosen, versions, left_out


def write(options: argparse.Namespace, facts: dict[str, Any], turns: list[Turn]) -> None:
    """Print and write what was found."""
    enough = PEER_ROWS if options.peers else set(ROWS)
    full = not options.quick and enough <= set(options.rows) and not options.contenders
    name = options.name or (("peers" if options.peers else "latest") if full else "partial")
    text = document(facts, turns)
    print(f"\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    found = {**facts, "turns": [turn._asdict() for turn in turns]}
    (options.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / f"{name}.md").write_text(text)
    if summaries := summarise(turns):
        from benchmarks.plot import draw

        draw(summaries, text.partition(";")[0], options.out / f"{name}.png")
    print(f"written: {options.out / name}.json, .md, .png")


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine.adopt_orphans()
    contenders, versions, left_out = choose(options)
    scale = Scale(options.workers, options.quick)
    facts = {
        "taken": machine.now(),
        "machine": machine.describe(),
        "peers": versions,
        "left_out": left_out,
        "workers": options.workers,
        "repeats": options.repeats,
        "quick": options.quick,
    }
    # As pip does for what it installs, pyzmq among it: or every start would compile the tree anew.
    for folder in ("taskmesh", "workers", "benchmarks"):
        compileall.compile_dir(ROOT / folder, quiet=1)
    turns: list[Turn] = []
    planned = list(plan(options.rows, contenders, options.repeats))
    try:
        for number, next_turn in enumerate(planned, 1):
            turns.append(take(next_turn, scale))
            print(f"{number:4}/{len(planned)} {sentence(turns[-1])}", flush=True)
    except KeyboardInterrupt:
        print("\nstopped: what was measured so far follows", file=sys.stderr)
        options.name = options.name or "partial"
    write(options, facts, turns)
    ours = [turn for turn in turns if turn.contender == REFERENCE or turn.contender.startswith("taskmesh")]
    return int(any(turn.error for turn in ours) or len(turns) < len(planned))


if __name__ == "__main__":
    sys.exit(main())
