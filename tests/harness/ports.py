"""Addresses for programs that are started later, or again."""

from benchmarks.ports import free_ports


def lasting_address() -> str:
    """Return an address for a hub that may die and come again: nobody is given its ports meanwhile."""
    return f"tcp://127.0.0.1:{free_ports(3)}"
