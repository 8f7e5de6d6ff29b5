"""The agreement of both ends of a link beside the messages: batch sizes and control topics."""

from __future__ import annotations

BATCH = 256
"""Messages taken off a socket before the others get their turn."""


ALL = b"all."


def topic(pool: str) -> bytes:
    """The control topic of one pool; dots in its name are escaped, so that no topic begins another."""
    return b"pool.%s." % pool.replace("%", "%25").replace(".", "%2E").encode()


def pool_of(topic: bytes) -> str:
    """The pool that a topic is for, "" if it is none's."""
    if not topic.startswith(b"pool."):
        return ""
    return topic[5:-1].decode(errors="replace").replace("%2E", ".").replace("%25", "%")
