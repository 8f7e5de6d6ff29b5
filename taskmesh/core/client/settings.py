"""The client machine's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Times in seconds.

    Attributes:
        patience: silence of the hub after which the client dials again. resend: for unacknowledged Submits.
        max_payload: bytes of a call; what a hub with a lower limit does not take is not sent to it.
        slot: of a session in a slot: its pool and process, as the hub learns that it has ended.
        question: how long a query or command may wait for a hub; nobody wants an answer later than that.
    """

    client: int
    name: str = ""
    slot: str = ""
    python: str = ""
    cloudpickle: str = ""
    max_payload: int = 0
    credit: int = 64 << 20
    hello: float = 1.0
    patience: float = 3.0
    resend: float = 2.0
    question: float = 5.0
