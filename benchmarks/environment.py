"""The interpreter of a contender: this one, or for a peer the one that `make bench-peers` installed.

Every peer has an environment of its own, so that none forces its versions on another, and one that cannot be
installed leaves the others alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.contender import DURABLE_PEERS, PEERS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-peers"
PROBE_LIMIT_S = 60.0
PROBE = (
    "import json; from benchmarks import machine; from benchmarks.contender import load; "
    "print(json.dumps([load({name!r}).missing(), machine.versions()]))"
)


class Found(NamedTuple):
    """The state of a contender's interpreter: why it cannot run (empty: it can), and the versions there."""

    missing: str
    packages: dict[str, str]


def interpreter(name: str, folder: Path = FOLDER) -> str:
    """Return the program that runs a contender's turns."""
    peer = peer_of(name)
    own = folder / peer / "bin" / "python"
    installed = peer in (*PEERS, *DURABLE_PEERS)
    return str(own) if installed and (folder / peer / "ready").exists() else sys.executable


def peer_of(name: str) -> str:
    """Return the peer whose packages a contender needs: `celery-durable` is Celery with other settings."""
    return name.partition("-")[0]


def probe(name: str, folder: Path = FOLDER) -> Found:
    """Ask a contender's interpreter whether it can run; for a peer that was not installed, say why."""
    command = [interpreter(name, folder), "-c", PROBE.format(name=name)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Found(f"its interpreter said nothing within {PROBE_LIMIT_S:.0f} s", {})
    if done.returncode:
        return Found(last_line(done.stderr) or f"its interpreter ended with {done.returncode}", {})
    missing, packages = json.loads(done.stdout.splitlines()[-1])
    failed = folder / peer_of(name) / "error"
    if missing and command[0] == sys.executable and failed.is_file():
        missing = f"its installation failed: {last_line(failed.read_text(errors='replace'))}"
    return Found(missing, packages)


def last_line(text: str) -> str:
    """Return the last error that pip or Python wrote, which is the reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return next(reversed(errors or lines), "")
