"""What tasks have written into a file, and what a hub says of them."""

from pathlib import Path

from taskmesh import Mesh
from taskmesh.errors import HubUnreachable


def words(journal: Path) -> list[str]:
    """The words in order."""
    return journal.read_text().split() if journal.exists() else []


def states(mesh: Mesh) -> dict[str, int]:
    """How many tasks are in which state."""
    return dict(mesh.status()["tasks"])


def pools(mesh: Mesh) -> dict[str, str]:
    """Which pools the hub has, and their states; empty while there is no hub."""
    try:
        return {pool["pool"]: pool["state"] for pool in mesh.status(timeout=0.5)["pools"]}
    except HubUnreachable:
        return {}
