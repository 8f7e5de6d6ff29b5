from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskmesh.sockets import (
    Context,
    ContextClosed,
    ForkedContext,
    Gather,
    InvalidCombination,
    NoPeerWithinTimeout,
    Pub,
    Pull,
    Scatter,
    SocketClosed,
    SocketOptions,
)
from tests.harness.waiting import wait_until

Address = Callable[[str], str]
SMALL = SocketOptions(send_hwm_messages=1, recv_hwm_messages=1)
THREADS = 4


def fill(scatter: Scatter) -> int:
    sent = 0
    while scatter.try_send(b"%d" % sent):
        sent += 1
    return sent


def waiting_in(socket: Scatter | Gather, number: int) -> None:
    wait_until(lambda: len(socket._line) == number)


def test_threads_that_find_no_room_all_get_through_in_the_order_they_came(context: Context) -> None:
    with Scatter(context, SMALL) as scatter, Gather(context, SMALL) as gather:
        gather.connect(scatter.bind("inproc://line"))
        sent = fill(scatter)
        senders = []
        for name in range(THREADS):
            sender = threading.Thread(target=scatter.send, args=(b"t%d" % name, 10))
            sender.start()
            waiting_in(scatter, name + 1)
            senders.append(sender)

        assert scatter.try_send(b"overtakes") is False
        received = [gather.recv(5) for _ in range(sent + THREADS)]
        for sender in senders:
            sender.join(5)

        assert received == [b"%d" % number for number in range(sent)] + [
            b"t%d" % name for name in range(THREADS)
        ]


def test_a_sender_that_waits_for_a_peer_is_woken_by_connect(context: Context) -> None:
    with Scatter(context) as scatter, Gather(context) as gather, ThreadPoolExecutor(1) as threads:
        gather.bind("inproc://late")
        sending = threads.submit(scatter.send, b"x", 10)
        waiting_in(scatter, 1)
        scatter.connect("inproc://late")

        sending.result(5)
        assert gather.recv(5) == b"x"


def test_a_time_out_in_the_line_lets_the_others_go_on(context: Context) -> None:
    with Scatter(context, SMALL) as scatter, Gather(context, SMALL) as gather:
        gather.connect(scatter.bind("inproc://impatient"))
        sent = fill(scatter)
        with ThreadPoolExecutor(3) as threads:
            first = threads.submit(scatter.send, b"first", 0.2)
            waiting_in(scatter, 1)
            second = threads.submit(scatter.send, b"second", 0.1)
            waiting_in(scatter, 2)
            third = threads.submit(scatter.send, b"third", 10)
            for impatient in (first, second):
                with pytest.raises(NoPeerWithinTimeout):
                    impatient.result(5)
            received = [gather.recv(5) for _ in range(sent + 1)]
            third.result(5)

        assert received[-1] == b"third"
        assert gather.recv_many() == []


def test_close_wakes_the_threads_that_wait(context: Context) -> None:
    scatter, gather = Scatter(context), Gather(context)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(scatter.send, b"x"), threads.submit(scatter.send, b"y")]
        waiting += [threads.submit(gather.recv), threads.submit(gather.recv, 30)]
        waiting_in(scatter, 2)
        waiting_in(gather, 2)
        scatter.close()
        gather.close()

        for future in waiting:
            with pytest.raises(SocketClosed):
                future.result(5)


def test_closing_the_context_wakes_the_threads_that_wait() -> None:
    context = Context()
    scatter, gather = Scatter(context), Gather(context)
    with ThreadPoolExecutor(3) as threads:
        blocked = [threads.submit(scatter.send, b"x"), threads.submit(gather.recv)]
        iterating = threads.submit(list, gather)
        waiting_in(scatter, 1)
        waiting_in(gather, 2)
        ending = threading.Thread(target=context.close)
        ending.start()
        for future in blocked:
            with pytest.raises(ContextClosed):
                future.result(5)
        assert iterating.result(5) == []
        scatter.close()
        gather.close()
        ending.join(5)
    assert context.raw.closed


def test_emulated_scatter_talks_to_pull_but_not_to_others(context: Context) -> None:
    with Scatter(context) as scatter, Pull(context) as pull, Pub(context) as pub:
        pull.connect(scatter.bind("inproc://emulated"))
        scatter.send(b"x", 5)
        assert pull.recv(5) == b"x"
        with pytest.raises(InvalidCombination):
            pub.connect("inproc://emulated")


def test_a_closed_socket_says_so(context: Context) -> None:
    scatter, gather = Scatter(context), Gather(context)
    scatter.close()
    gather.close()
    scatter.close()
    for call in (
        lambda: scatter.send(b"x"),
        lambda: scatter.try_send(b"x"),
        gather.recv,
        gather.recv_many,
        gather.fileno,
        lambda: scatter.bind("inproc://closed"),
    ):
        with pytest.raises(SocketClosed):
            call()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from 3.12 on: there are threads
def test_a_forked_child_is_refused_even_while_a_thread_of_the_parent_waits() -> None:
    with Context() as context, Scatter(context) as scatter, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(scatter.send, b"x")
        waiting_in(scatter, 1)
        child = os.fork()
        if child == 0:
            os._exit(_refusals(scatter))  # noqa: TID251  a child that never returns
        _, status = os.waitpid(child, 0)
        scatter.close()

        assert os.waitstatus_to_exitcode(status) == 3
        with pytest.raises(SocketClosed):
            waiting.result(5)


def _refusals(scatter: Scatter) -> int:
    refused = 0
    for call in (
        lambda: scatter.send(b"x", 1),
        lambda: scatter.try_send(b"x"),
        lambda: scatter.bind("inproc://c"),
    ):
        try:
            call()
        except ForkedContext:
            refused += 1
        except BaseException:  # noqa: BLE001  the child must not return into pytest
            return 100
    scatter.close()
    return refused


def test_monitor_and_endpoints_work_as_on_other_sockets(context: Context) -> None:
    with Scatter(context) as scatter, Gather(context) as gather:
        with gather.monitor() as events:
            endpoint = scatter.bind("tcp://127.0.0.1:*")
            assert scatter.endpoint == endpoint
            gather.connect(endpoint)
            events.wait_ready(5)
            gather.disconnect(endpoint)
        scatter.unbind(endpoint)
        assert scatter.fileno() >= 0
