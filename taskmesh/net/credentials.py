"""What a client, pool or operator shows a hub: its own key, and the hub's that it trusts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from taskmesh.keys import KeyFolder
from taskmesh.net.endpoints import Endpoints
from taskmesh.sockets import CurveClient, KeyPair, SocketOptions


@dataclass(frozen=True, slots=True)
class Credentials:
    """One's own pair of a role, the keys that the hub may have, and the mesh key; two while one rotates."""

    role: str
    pair: KeyPair
    hub_keys: tuple[bytes, ...]
    mesh_keys: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to try: a hub's endpoints, and the key that it is expected to have (None: no keys)."""

    hub: Endpoints
    hub_key: bytes | None = None

    def options(self, options: SocketOptions, pair: KeyPair | None) -> SocketOptions:
        """A socket's options, with these keys."""
        if self.hub_key is None or pair is None:
            return options
        return replace(options, curve=CurveClient(pair.public, pair.secret, self.hub_key))


def credentials_of(directory: str, role: str) -> Credentials | None:
    """The credentials of a role in a directory; None when no directory is given.

    Raises:
        KeysUnusable: a key is missing, or open to others.
    """
    if not directory:
        return None
    folder = KeyFolder(directory)
    return Credentials(role, folder.own(role), folder.hub_keys(), folder.mesh_keys())


def ways(addresses: Sequence[str], credentials: Credentials | None) -> list[Way]:
    """Every address with every key that its hub may have, in the order in which they are tried.

    Raises:
        ConfigError: an address is none.
    """
    keys: Sequence[bytes | None] = credentials.hub_keys if credentials is not None else (None,)
    return [Way(Endpoints.of(address), key) for address in addresses for key in keys]
