"""Task functions that run inside the containers of the tests."""

import os
import pathlib
import threading
from typing import Any


def surroundings() -> dict[str, Any]:
    """Who runs here, and what may be written."""
    status = pathlib.Path("/proc/self/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return {
        "uid": os.getuid(),
        "capabilities": int(fields["CapEff"], 16),
        "no new privileges": fields["NoNewPrivs"],
        "seccomp": fields["Seccomp"],
        "writable": [folder for folder in ("/", "/opt/taskmesh", "/tasks", "/scratch") if _writable(folder)],
        "cwd": os.getcwd(),
    }


def _writable(folder: str) -> bool:
    return os.access(folder, os.W_OK)


def nap(seconds: float) -> str:
    """Takes a while; a file tells that it has begun."""
    pathlib.Path("/scratch/begun").touch()
    threading.Event().wait(seconds)
    return "slept"


def grab(megabytes: int) -> int:
    """Uses memory."""
    return len(bytes(bytearray(b"x") * (megabytes << 20)))


def double(number: int) -> int:
    """Next to nothing."""
    return 2 * number
