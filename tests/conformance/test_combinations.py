# ruff: noqa: N802 (a test is named after its clause)
"""Which sockets may be connected: every pair of roles, either side binding."""

from __future__ import annotations

import pytest

from taskmesh.sockets import InvalidCombination, Role
from tests.conformance.rig import PATIENCE_S, TYPED, Rig

ROLES = [role for role in Role if role not in (Role.SCATTER, Role.GATHER)]
VALID = {
    frozenset(pair.split("-"))
    for pair in [
        "PUSH-PULL",
        "PUB-SUB",
        "PUB-XSUB",
        "XPUB-SUB",
        "XPUB-XSUB",
        "REQ-REP",
        "REQ-ROUTER",
        "DEALER-REP",
        "DEALER-DEALER",
        "DEALER-ROUTER",
        "ROUTER-ROUTER",
        "PAIR-PAIR",
    ]
}
NETWORK = pytest.mark.transports("tcp", "ipc")


def is_valid(binder: Role, connector: Role) -> bool:
    return frozenset((binder.value, connector.value)) in VALID


@NETWORK
@pytest.mark.parametrize("binder", ROLES, ids=lambda role: role.value)
def test_PAIRS_the_handshake_admits_the_listed_pairs_alone(rig: Rig, binder: Role) -> None:
    for connector in ROLES:
        ours = rig.ours(TYPED[binder.value])
        peer = rig.peer(connector.value, reconnect_interval_ms=-1)
        with ours.monitor() as events:
            peer.connect(ours.bind(rig.address()))
            if is_valid(binder, connector):
                events.wait_ready(PATIENCE_S)
            else:
                with pytest.raises(InvalidCombination, match=f"{binder.value} can be connected to"):
                    events.wait_ready(PATIENCE_S)


@pytest.mark.transports("inproc")
@pytest.mark.peers("typed")
@pytest.mark.parametrize("bind_first", [True, False])
@pytest.mark.parametrize("binder", ROLES, ids=lambda role: role.value)
def test_PAIRS_over_inproc_where_libzmq_checks_nothing_we_do(
    rig: Rig, binder: Role, bind_first: bool
) -> None:
    for connector in ROLES:
        bound, connected = rig.ours(TYPED[binder.value]), rig.ours(TYPED[connector.value])
        endpoint = rig.address()
        calls = (bound.bind, connected.connect) if bind_first else (connected.connect, bound.bind)
        calls[0](endpoint)
        if is_valid(binder, connector):
            calls[1](endpoint)
        else:
            with pytest.raises(InvalidCombination):
                calls[1](endpoint)


def test_PAIRS_our_table_is_the_list() -> None:
    table = {frozenset((a.value, b.value)) for a in ROLES for b in a.peers}

    assert table == VALID
    assert Role.SCATTER.peers == {Role.GATHER}
    assert Role.GATHER.peers == {Role.SCATTER}


@NETWORK
@pytest.mark.parametrize(("binder", "connector"), [("SCATTER", "GATHER"), ("GATHER", "SCATTER")])
def test_PAIRS_emulated_scatter_and_gather_connect(rig: Rig, binder: str, connector: str) -> None:
    ours, peer = rig.ours(TYPED[binder]), rig.peer(connector)
    with ours.monitor() as events:
        peer.connect(ours.bind(rig.address()))
        events.wait_ready(PATIENCE_S)
