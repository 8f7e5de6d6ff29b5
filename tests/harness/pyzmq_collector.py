"""A fixture for folders whose tests use ZeroMQ."""

import pytest

from taskmesh.sockets import Context, Pull, Push

LARGE = 1 << 17


@pytest.fixture(scope="session", autouse=True)
def pyzmq_collector() -> None:
    """Start what pyzmq keeps for the life of a process that sends without copying: a thread and a context."""
    with Context() as context, Push(context) as push, Pull(context) as pull:
        pull.bind("inproc://warm")
        push.connect("inproc://warm")
        push.send_parts([bytes(LARGE)], timeout=1.0)
        assert len(pull.recv_parts(timeout=1.0)[0]) == LARGE
