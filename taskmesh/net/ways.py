"""The ways to a hub: an address with a key that the hub there may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskmesh.net.endpoints import Endpoints
from taskmesh.security.keys import Credentials
from taskmesh.sockets import CurveClient, KeyPair, SocketOptions


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


def ways(addresses: Sequence[str], credentials: Credentials | None) -> list[Way]:
    """Every address with every key that its hub may have, in the order in which they are tried.

    Raises:
        ConfigError: an address is none.
    """
    keys: Sequence[bytes | None] = credentials.hub_keys if credentials is not None else (None,)
    return [Way(Endpoints.of(address), key) for address in addresses for key in keys]
