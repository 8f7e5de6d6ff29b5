"""Credentials that a client, pool or operator shows a hub: its own key, and the hub's that it trusts."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskmesh.security.keys import KeyFolder
from taskmesh.sockets import KeyPair


@dataclass(frozen=True, slots=True)
class Credentials:
    """One's own pair of a role, the keys that the hub may have, and the mesh key; two while one rotates."""

    role: str
    pair: KeyPair
    hub_keys: tuple[bytes, ...]
    mesh_keys: tuple[bytes, ...] = field(default=(), repr=False)


def credentials_of(directory: str, role: str) -> Credentials | None:
    """The credentials of a role in a directory; None when no directory is given.

    Raises:
        KeysUnusable: a key is missing, or open to others.
    """
    if not directory:
        return None
    folder = KeyFolder(directory)
    return Credentials(role, folder.own(role), folder.hub_keys(), folder.mesh_keys())
