"""The errors of sockets: each is a SocketError, and so a TaskMeshError."""

from __future__ import annotations

from taskmesh.errors import ForkedMeshError, TaskMeshError


class SocketError(TaskMeshError):
    """The root of what the socket library raises; `number` is libzmq's errno where there is one."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class NoPeerWithinTimeout(SocketError, TimeoutError):
    """The message was not accepted: no peer is available and the time is up."""


class NoMessageWithinTimeout(SocketError, TimeoutError):
    """No message arrived within the time-out."""


class WrongDirection(SocketError, TypeError):
    """The role cannot send, or cannot receive."""


class WrongTurn(SocketError):
    """A Req or Rep was used out of its send and recv rhythm."""


class MultipartRefused(SocketError, ValueError):
    """The role carries messages of exactly one part."""


class InvalidCombination(SocketError):
    """The two roles cannot be connected to each other."""


class HandshakeFailed(SocketError, ConnectionError):
    """A connection was made, but the two ends did not agree (keys, protocol)."""


class PeerUnreachable(SocketError, ConnectionError):
    """No connected peer has the identity that the message is addressed to."""


class EndpointError(SocketError, ValueError):
    """The endpoint cannot be bound, connected or released."""


class InvalidOption(SocketError, ValueError):
    """An option has an impossible value or does not belong to this role."""


class UnsupportedLibrary(SocketError, ImportError):
    """The libzmq that pyzmq carries is older than taskmesh needs."""


class SocketClosed(SocketError):
    """The socket is closed."""


class ContextClosed(SocketError):
    """The context is closed or closing; its sockets can only be closed."""


class ContextNotClosed(SocketError, TimeoutError):
    """The context could not end in time, because sockets in it are still open or still sending."""


class ForkedContext(SocketError, ForkedMeshError):
    """A context or socket was used in a forked child of the process that made it."""
