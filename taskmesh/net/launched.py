"""The child process of a launched mesh: a hub with a pool, until its parent ends."""

from __future__ import annotations

import json
import sys

from taskmesh.config import load
from taskmesh.net.programs import run_hub


def main() -> None:
    """Reads its settings from the command line and runs."""
    settings = json.loads(sys.argv[1])
    config = load(settings["config"], environ={})
    run_hub(
        config,
        settings["bind"],
        slots=config.pool.slots,
        ready=lambda endpoints: None,
        record=lambda kind, fields: None,
        parent=settings["parent"],
    )


if __name__ == "__main__":
    main()
