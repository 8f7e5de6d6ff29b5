"""A whole run: which turns are taken in which order, each in a process that leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.contender import REFERENCE, load
from benchmarks.environment import interpreter
from benchmarks.metrics import METRICS, ROWS
from benchmarks.rows import ROOT, Scale

TURN_LIMIT_S = 300.0
GRACE_S = 2.0  # what a turn started may take so long to see that the turn has ended
RELATIVE = frozenset(metric.row for metric in METRICS.values() if metric.relative)


class Planned(NamedTuple):
    """A turn to take. Turns of one pair are taken one after the other and make one ratio."""

    row: str
    contender: str
    repeat: int
    pair: int


class Turn(NamedTuple):
    """A turn taken: its figures, or the error that is in their place."""

    row: str
    contender: str
    repeat: int
    pair: int
    figures: dict[str, float]
    seconds: float = 0.0
    foreign_cpus: float | None = None
    left_behind: int = 0
    detail: dict[str, Any] | None = None
    error: str = ""


def plan(rows: Sequence[str], contenders: Sequence[str], repeats: int) -> Iterator[Planned]:
    """Return the turns in order. Every repeat has all rows, and the two turns of a ratio are neighbours."""
    pair = 0
    rivals = [name for name in contenders if name != REFERENCE]
    for repeat in range(repeats):
        for row in (row for row in ROWS if row in rows):
            taking = [name for name in rivals if row in load(name).rows]
            paired = row in RELATIVE and taking
            # What raw loses by a fault takes a long wait to see, and is the same every time.
            alone = (
                REFERENCE in contenders and row in load(REFERENCE).rows and not (row == "fault" and repeat)
            )
            if alone and not paired:
                pair += 1
                yield Planned(row, REFERENCE, repeat, pair)
            for name in taking:
                pair += 1
                if paired:
                    yield Planned(row, REFERENCE, repeat, pair)
                yield Planned(row, name, repeat, pair)


def take(planned: Planned, scale: Scale) -> Turn:
    """Run one turn in a session of its own; whatever it started is gone when this returns or raises."""
    with tempfile.TemporaryDirectory(prefix="benchmark") as folder:
        out, messages = Path(folder) / "turn.json", Path(folder) / "messages"
        command = [interpreter(planned.contender), "-m", "benchmarks.turn", planned.contender, planned.row]
        command += ["--out", str(out), "--workers", str(scale.workers), *(["--quick"] if scale.quick else [])]
        error, ended = "", False
        with messages.open("wb") as sink:
            try:
                subprocess.run(
                    command,
                    cwd=ROOT,
                    env={**os.environ, "TMPDIR": folder},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the turn
                    timeout=TURN_LIMIT_S,
                    check=True,
                )
                ended = True
            except subprocess.TimeoutExpired:
                error = f"not done after {TURN_LIMIT_S:.0f} s"
            except subprocess.CalledProcessError as failed:
                error = f"ended with {failed.returncode}"
            finally:
                left = machine.await_descendants(GRACE_S) if ended else 0
                machine.end_descendants()
        if error:
            text = messages.read_text(errors="replace").replace(f"{ROOT}/", "")  # results are published
            said = text.strip().splitlines()
            return Turn(*planned, figures={}, left_behind=left, error="\n".join([error, *said[-15:]]))
        report = json.loads(out.read_text())
        return Turn(*planned, left_behind=left, **report)


def sentence(turn: Turn) -> str:
    """Return the figures of a turn in one line."""
    if turn.error:
        return f"{turn.row:>10} {turn.contender:<16} FAILED: {turn.error}"
    figures = ", ".join(
        f"{key} {value:,.{METRICS[key].digits}f} {METRICS[key].unit}".rstrip()
        for key, value in turn.figures.items()
    )
    foreign = f"; {turn.foreign_cpus:.1f} CPUs used by others" if (turn.foreign_cpus or 0) > 0.1 else ""
    left = f"; {turn.left_behind} processes left behind" if turn.left_behind else ""
    return f"{turn.row:>10} {turn.contender:<16} {figures}{foreign}{left}"
