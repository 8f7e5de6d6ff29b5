"""Directories of keys: a hub's, and one for each peer."""

from pathlib import Path

from taskmesh.security.key_files import keys_in
from taskmesh.security.keys import KeyFolder


class Ring:
    """The keys of a mesh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = KeyFolder(folder / "hub-keys")
        self.hub.new(["hub"])
        self.workers = KeyFolder(folder / "workers")
        self.workers.new(["worker"], self.hub.path / "hub.public")
        self.mesh = self.workers.path / "mesh.secret"

    def peer(self, role: str, name: str, *, authorized: bool = True) -> str:
        """Make a peer's directory, with the mesh key in it."""
        folder = KeyFolder(self.folder / f"{role}-{name}")
        (public,) = folder.new([role], self.hub.path / "hub.public", self.mesh)
        if authorized:
            self.hub.authorize(role, name, keys_in(public))
        return str(folder.path)


def tells_of_revocation(error: BaseException | None) -> bool:
    """Return True if an error says so, in the hub's words or after a handshake that was refused.

    The hub's own words come if a message arrives before its link is cut.
    """
    return any(words in str(error) for words in ("or not any more", "its key has been revoked"))
