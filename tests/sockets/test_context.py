from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable

import pytest
import zmq

from taskmesh.errors import ForkedMeshError
from taskmesh.sockets import (
    Context,
    ContextClosed,
    ContextNotClosed,
    ForkedContext,
    InvalidOption,
    Pull,
    Push,
    SocketError,
    SocketOptions,
)

Address = Callable[[str], str]


def test_a_closed_context_makes_no_sockets() -> None:
    context = Context()
    context.close()
    context.close()

    assert context.closed
    with pytest.raises(ContextClosed, match="make a new Context"):
        Push(context)


def test_a_context_without_descriptors_to_begin_with_is_refused_and_ends_no_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)  # what is free below it is no matter: the limit is of the numbers
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 3, hard))
    try:
        with pytest.raises(SocketError, match="ulimit -n"):
            Context()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("granted", [0, 2])
def test_a_context_without_threads_to_begin_with_is_refused_and_ends_no_process(
    granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(begun) == granted:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)

    with pytest.raises(SocketError, match="ulimit -u"):
        Context()
    assert not any(thread.is_alive() for thread in begun)


def test_close_names_the_sockets_that_were_left_open_and_ends_once_they_are_closed() -> None:
    context = Context()
    push = Push(context)

    with pytest.raises(ContextNotClosed, match="<Push at"):
        context.close(timeout=0.05)
    with pytest.raises(ContextClosed):
        push.send(b"x")
    push.close()
    context.close()


def test_close_raises_when_messages_linger_longer_than_the_deadline() -> None:
    context = Context()
    push = Push(context, SocketOptions(linger_ms=-1))
    push.connect("tcp://127.0.0.1:1")
    push.send(b"for nobody")
    push.close(linger_ms=300)

    with pytest.raises(ContextNotClosed, match="messages linger"):
        context.close(timeout=0.05)
    context.close(timeout=5)


def test_forced_close_bounds_the_linger_of_the_sockets_it_closes() -> None:
    context = Context()
    push = Push(context, SocketOptions(linger_ms=-1))
    push.connect("tcp://127.0.0.1:1")
    push.send(b"for nobody")

    context.close(timeout=1, force=True)

    assert push.closed


def test_leaving_a_with_block_closes_the_sockets_in_it() -> None:
    with Context() as context:
        push = Push(context)

    assert push.closed
    assert context.closed


def test_a_lingering_message_is_still_delivered(context: Context) -> None:
    with Pull(context) as pull:
        endpoint = pull.bind("tcp://127.0.0.1:*")
        with Push(context, SocketOptions(linger_ms=5000)) as push:
            push.connect(endpoint)
            push.send(b"last words")

        assert pull.recv(5) == b"last words"


def test_closing_the_context_wakes_a_blocked_receiver() -> None:
    context = Context()
    seen: list[BaseException] = []
    ready = threading.Event()

    def wait_for_ever() -> None:
        with Pull(context) as pull:
            pull.bind("inproc://blocked")
            ready.set()
            try:
                pull.recv()
            except ContextClosed as error:
                seen.append(error)

    thread = threading.Thread(target=wait_for_ever)
    thread.start()
    assert ready.wait(5)
    context.close(timeout=5)
    thread.join(5)

    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from 3.12 on: there are threads
def test_a_forked_child_is_refused_everywhere_and_may_close() -> None:
    with Context() as context, Push(context) as push, Pull(context) as pull, push.monitor() as events:
        pull.connect(push.bind("inproc://fork"))
        calls = [
            lambda: events.recv(0),
            lambda: push.send(b"x"),
            lambda: push.try_send(b"x"),
            lambda: push.send_parts([b"x"]),
            lambda: pull.recv(1),
            pull.recv_many,
            lambda: pull.connect("inproc://fork"),
            lambda: push.endpoint,
            lambda: Push(context),
            lambda: context.new_raw_socket(zmq.PUSH),
        ]
        child = os.fork()
        if child == 0:
            os._exit(_count_not_refused(calls, context, push))  # noqa: TID251  a child that never returns
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        push.send(b"the parent's are unharmed", timeout=5)
        assert pull.recv(5) == b"the parent's are unharmed"
    assert issubclass(ForkedContext, ForkedMeshError)


def _count_not_refused(calls: list[Callable[[], object]], context: Context, push: Push) -> int:
    failures = 0
    for call in calls:
        try:
            call()
            failures += 1
        except ForkedContext:
            pass
        except BaseException:  # noqa: BLE001  the child must not return into pytest
            failures += 1
    try:
        push.close()
        context.close(timeout=0.1)
    except BaseException:  # noqa: BLE001
        failures += 100
    return failures


def test_max_sockets_bounds_the_context() -> None:
    context = Context(max_sockets=2)
    with context, Push(context), Push(context), pytest.raises(SocketError, match="max_sockets"):
        Push(context)


@pytest.mark.parametrize("bad", [{"max_sockets": 0}, {"max_sockets": 10**6}, {"io_threads": -1}])
def test_impossible_contexts_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidOption):
        Context(**bad)


def test_a_context_that_found_no_thread_to_end_it_can_be_closed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    context = Context()
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            context.close()

    context.close()

    assert context.raw.closed
