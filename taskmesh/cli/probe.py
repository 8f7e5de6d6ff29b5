"""`taskmesh health VERB --http HOST:PORT`, as Kubernetes' probes have it, without loading the command.

Every other form of it, and every answer that is not plain, is left to the command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from taskmesh.http.client import SideClient, SidePortUnreachable

PATHS = {"live": "/livez", "ready": "/readyz", "startup": "/startupz"}


def probed(line: Sequence[str]) -> int | None:
    """Return the exit code of a probe; None when this is no plain one, or got no plain answer."""
    match line:
        case ["health", verb, "--http", address] if verb in PATHS:
            host, _, port = address.rpartition(":")
        case _:
            return None
    if not host.replace(".", "").isdigit() or not port.isdigit():
        return None
    try:
        status, text = SideClient(host, int(port)).ask("GET", PATHS[verb])
    except SidePortUnreachable:
        return None
    if status not in (200, 503):
        return None
    sys.stdout.write(f"{text}\n")
    return 0 if status == 200 else 1
