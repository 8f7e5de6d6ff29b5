"""Ports for lanes, and sockets that cut everybody off and listen again."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.ports import free_ports
from taskmesh.errors import ConfigError
from taskmesh.hub.lanes import LanePorts
from taskmesh.hub.listeners import Listeners
from taskmesh.sockets import Context, EndpointError, Pull, Push
from tests.harness.program import timed_lines
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

GATEWAY = "tcp://127.0.0.1:1"


def test_the_port_that_was_free_longest_is_taken_next():
    first = free_ports(3)
    ports = LanePorts(f"{first}-{first + 2}")
    with Context() as context:
        with Push(context) as one, Push(context) as two:
            taken = [int(ports.bind(one, 1, GATEWAY)), int(ports.bind(two, 2, GATEWAY))]
        ports.release(1)
        with Push(context) as three:
            taken.append(int(ports.bind(three, 3, GATEWAY)))

    assert taken == [first, first + 1, first + 2]


def test_ports_that_others_have_are_passed_over_until_none_is_left():
    first = free_ports(2)
    ports = LanePorts(f"{first}-{first + 1}")
    with Context() as context, Push(context) as other, Push(context) as lane, Push(context) as late:
        other.bind(f"tcp://127.0.0.1:{first}")

        assert ports.bind(lane, 1, GATEWAY) == str(first + 1)
        with pytest.raises(EndpointError, match="--lanes"):
            ports.bind(late, 2, GATEWAY)


@pytest.mark.parametrize("text", ["5600", "a-b", "7-6", "0-5", "1-70000", "-5"])
def test_what_is_no_range_is_told_what_one_looks_like(text):
    with pytest.raises(ConfigError, match=r"5600-6799|smaller one first"):
        LanePorts(text)


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:*", "tcp://*:*", "ipc://{folder}/pull", "ipc://@{folder}"])
def test_a_socket_that_was_cut_off_is_dialled_again(bind, tmp_path):
    listeners = Listeners()
    with closing(listeners), Context() as context, Pull(context) as pull, Push(context) as push:
        listeners.bind(pull, bind.format(folder=tmp_path))
        push.connect(pull.endpoint.replace("0.0.0.0", "127.0.0.1"))  # noqa: S104
        push.send(b"one", timeout=5)
        assert pull.recv(timeout=5) == b"one"

        listeners.cut_off(pull)
        listeners.cut_off(pull)

        def arrived() -> bool:
            listeners.listen_again()
            push.try_send(b"two")
            return bool(pull.recv_many())

        wait_until(arrived)
        assert not listeners.waiting


def test_messages_have_no_sender_where_no_handler_was_asked():
    with Context() as context, Pull(context) as pull, Push(context) as push:
        pull.bind("inproc://here")
        push.connect("inproc://here")
        push.send_parts([b"a", bytes(100_000)], timeout=5)
        push.send_parts([b"b"], timeout=5)

        assert pull.recv_parts_from(1) == [("", [b"a", bytes(100_000)])]
        assert pull.recv_parts_from(9) == [("", [b"b"])]
        assert pull.recv_parts_from(9) == []


def test_a_worker_for_whom_no_port_is_left_is_told_who_knows_why(programs: Programs):
    port = free_ports(1)
    hub = programs.start("hub", "--bind", "tcp://127.0.0.1:0", "--lanes", f"{port}-{port}", "--json")
    address = hub.ready()["gateway"]
    programs.worker(address, "--name", "first")
    second = programs.start("worker", "--address", address, "--name", "second")

    told = wait_until(lambda: second.errors, 20)

    status = f"taskmesh status --address {address}"
    [(_, said)] = timed_lines(told)
    assert said == f"the hub at {address} gives this pool no session; `{status}` says why. Still asking"
    assert "--lanes FIRST-LAST" in programs.run("status", "--address", address).stdout


def test_a_worker_that_finds_no_hub_and_then_one_without_a_place_for_it_tells_both(programs: Programs):
    port, gateway = free_ports(1), free_ports(3)
    address = f"tcp://127.0.0.1:{gateway}"
    late = programs.start("worker", "--address", address, "--name", "late")
    assert "no hub answers" in wait_until(lambda: late.errors, 20)
    with Context() as context, Push(context) as other:
        other.bind(f"tcp://127.0.0.1:{port}")
        lanes = ("--lanes", f"{port}-{port}")
        programs.start("hub", "--bind", address, *lanes, "--json", env={"TASKMESH_HUB__LEASE": "2"}).ready()

        wait_until(lambda: "gives this pool no session" in late.errors, 20)
    wait_until(late.out.read_text, 20)  # the port is free: it is ready


@pytest.mark.parametrize("verb", ["hub", "up"])
def test_no_file_of_a_hub_on_ipc_is_left_when_it_ends(programs: Programs, tmp_path: Path, verb: str):
    folder = tmp_path / "run"
    folder.mkdir()
    hub, _ = programs.hub(f"ipc://{folder}/other")
    ended = programs.start(verb, "--bind", f"ipc://{folder}/own", "--json")
    own = ended.ready()["gateway"]
    worker = programs.worker(own)
    assert sum(name.startswith("own.lane-") for name in os.listdir(folder)) == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    wait_until(lambda: not any(name.startswith("own.lane-") for name in os.listdir(folder)))
    programs.worker(own)

    ended.signal(signal.SIGTERM)
    assert ended.wait() == 0

    assert sorted(os.listdir(folder)) == ["other", "other.collector", "other.control"]
    assert programs.run("status", "--address", f"ipc://{folder}/other").returncode == 0
    hub.signal(signal.SIGINT)
    assert hub.wait() == 0
    assert os.listdir(folder) == []
