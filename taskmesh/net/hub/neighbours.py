"""The hub's neighbours: the clients and pools between which and this process memory files may be used."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from taskmesh.shm.neighbour import Neighbour, NeighbourProbe
from taskmesh.wire import messages as m

_W = TypeVar("_W", m.ClientWelcome, m.Welcome)

MOST_OFFERS = 4096
"""Pools with an offer and no lane yet, of which the hub keeps note."""


class Neighbours:
    """Clients that are neighbours, and pools that have not got a lane yet; a lane knows its own.

    Args:
        enabled: whether files may be used at all. Where keys are in use, they may not: the hub could change
            what was signed after it was verified.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._probe = NeighbourProbe() if enabled else None
        self._clients: dict[int, Neighbour] = {}
        self._pools: dict[str, Neighbour] = {}

    def meet_client(self, client: int, offer: bytes) -> None:
        """Find out if a client that says Hello is a neighbour."""
        self.forget(client)
        neighbour = self._probe.meet(offer) if self._probe is not None else None
        if neighbour is not None:
            self._clients[client] = neighbour

    def meet_pool(self, pool: str, offer: bytes) -> None:
        """Find out if a pool that says Hello is one."""
        self._pools.pop(pool, None)
        neighbour = self._probe.meet(offer) if self._probe is not None else None
        if neighbour is not None and len(self._pools) < MOST_OFFERS:
            self._pools[pool] = neighbour

    def client(self, client: int) -> Neighbour | None:
        """Return the neighbour that a client is."""
        return self._clients.get(client)

    def of_lane(self, pool: str) -> Neighbour | None:
        """Return the neighbour that a pool is, for its new lane."""
        return self._pools.pop(pool, None)

    def welcome(self, message: _W, neighbour: Neighbour | None) -> _W:
        """Return a Welcome with the hub's own offer, if it is for a neighbour."""
        if neighbour is None or self._probe is None:
            return message
        return replace(message, files=self._probe.offer)

    def knows(self, pid: int, lanes: Iterable[Neighbour | None]) -> bool:
        """Return whether the process with this id is a neighbour, or one of these."""
        near = chain(self._clients.values(), lanes)
        return any(neighbour is not None and neighbour.pid == pid for neighbour in near)

    def forget(self, client: int) -> None:
        """Forget a client that is gone."""
        self._clients.pop(client, None)

    def close(self) -> None:
        """Close the probe."""
        if self._probe is not None:
            self._probe.close()
