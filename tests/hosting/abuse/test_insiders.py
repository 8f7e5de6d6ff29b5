"""Abuse list, rows of those who have a good key: A05 to A14 of docs/explanation/security.md."""

import contextlib
import itertools
import random
import socket
import threading
import typing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from taskmesh import Mesh
from taskmesh.core import ids
from taskmesh.core.specs import spec_number
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.endpoints import tcp_parts
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.fragments import Cutter
from taskmesh.messages.frames import encode
from taskmesh.messages.runs import DoneRun, Failed, Held, Progress, Run, Spec
from taskmesh.security.authorization import RIGHTS
from taskmesh.serialize.code import dump_function
from taskmesh.serialize.payload import dumps
from taskmesh.sockets import (
    Context,
    Dealer,
    EventKind,
    NoMessageWithinTimeout,
    Push,
    Sub,
)
from tests.fuzz.forger import Forger
from tests.harness.cluster import Cluster
from tests.harness.journal import words
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload
from tests.hosting.abuse.siege import Siege
from tests.hosting.intruder import FalsePool, Meet, Peer

MANY_FRAMES = 30_000
"""libzmq holds some 160 bytes a frame until the hub reads the message, and gives them back to nobody: the six
messages of a test may all be there at once, and are together less than `siege.GROWTH`."""

pytestmark = pytest.mark.timeout(150)


def kinds(union: object) -> tuple[type, ...]:
    return typing.get_args(union)


EVERYTHING = (*kinds(m.ClientMessage), *kinds(m.ToClient), *kinds(m.PoolMessage), *kinds(m.ToPool))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("role", "closed"),
    [
        ("client", ("collector", "control")),
        ("operator", ("collector", "control")),
    ],
)
def test_A05_a_role_s_key_opens_no_socket_of_another(
    keyed: Cluster, meet: Meet, role: str, closed: tuple[str, ...]
):
    peer = meet(role, "mallory")
    for part in closed:
        kind = {"gateway": Dealer, "collector": Push, "control": Sub}[part]
        with kind(peer.context, peer.options) as one, one.monitor() as monitor:
            one.connect(getattr(peer.hub, part))
            monitor.wait_for(EventKind.HANDSHAKE_FAILED_AUTH, 5)


@pytest.mark.smoke
@pytest.mark.parametrize("role", ["client", "operator", "worker"])
def test_A05_a_role_says_what_it_may_and_nothing_else_counts(keyed: Cluster, meet: Meet, role: str):
    """Every type of message, from every role, at the socket that this role may use."""
    peer = meet(role, "mallory")
    pool = FalsePool(peer) if role == "worker" else None
    allowed = set(kinds(m.PoolMessage)) if pool else RIGHTS[role]
    forger = Forger(random.Random(role))
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        before = mesh.status()
        for kind in EVERYTHING:
            if kind in allowed or kind is m.ClientBye:
                continue
            for _ in range(5):
                message = forger.struct(kind)
                if pool:
                    pool.say(message)
                else:
                    peer.say(message)
        wait_until(lambda: "message.refused" in keyed.hub.errors)
        after = mesh.status()
        assert [pool["pool"] for pool in after["pools"]] == [pool["pool"] for pool in before["pools"]]
        assert [pool["state"] for pool in after["pools"]] == ["ready"]


def test_A07_frames_without_end_or_without_content(keyed: Cluster, meet: Meet):
    client, pool = meet("client", "mallory"), FalsePool(meet("worker", "mallory"))
    submit = [bytes(part) for part in encode(m.Submit(1, [], [Run(7, 0, [1], [b"x"])]))]
    games: list[list[bytes]] = [
        [b""],
        [b""] * 1000,
        [b"", *submit],
        submit + [b""] * MANY_FRAMES,
        submit + [b"y" * 10] * MANY_FRAMES,
        [*submit, b"z" * (16 << 20)],  # last: libzmq aborts who closes amid a message as its link is cut off
        [submit[0][:1]] * 3,
    ]
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        for game in games:
            client.gateway.send_parts(game, timeout=10)
            pool.collector.send_parts(game, timeout=10)
            pool.collector.send_parts([pool.token, *game], timeout=10)
            siege.work()


def bombs() -> Iterator[bytes]:
    """Headers that are well-formed msgpack, or nearly, and ask for more than they are."""
    pack = msgspec.msgpack.encode
    huge = "n" * (4 << 20)  # a message of fragments, and twice so much as one of them may have
    yield from (
        pack({"type": 1, "client": 5, "epoch": 0, "name": huge}),
        pack({"type": 7, "number": 1, "what": huge}),
    )
    yield pack({"type": 40, "pool": huge, "instance": 1, "number": 1, "slots": 1, "queues": [], "tags": [],
                "epoch": 0, "session": 0, "inventory": []})  # fmt: skip
    yield pack({"type": 1, "client": 1 << 63, "epoch": -(1 << 63), "first": (1 << 64) - 1, "credit": -1})
    yield b"\x82\xa4type\x01\xa6client" + b"\xdd\xff\xff\xff\xff"
    yield b"\x82\xa4type\x02\xa4runs" + b"\x91" * 1_000_000
    yield b"\x82\xa4type\x01\xa4name\xa4\xff\xfe\xfd\xfc"
    spec = [b"f", "name", "default", 0, float("nan"), -1.0, float("inf")]
    yield pack({"type": 2, "number": 1, "specs": [(1, spec)], "runs": []})
    yield pack({"type": 2, "number": 1, "specs": [], "runs": [[1, 0, [-1, 1 << 63], [b"x", b"y"]]]})
    for attempt, kind in itertools.product((-1, 1 << 63), ("exception", huge[:100_000])):
        yield pack({"type": 41, "epoch": 1, "session": 1, "number": 1, "done": [], "returned": [],
                    "failed": [[1, 1, attempt, kind]]})  # fmt: skip


def test_A08_lengths_depths_and_numbers_that_are_bombs(keyed: Cluster, meet: Meet):
    client, pool = meet("client", "mallory"), FalsePool(meet("worker", "mallory"))
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        cutter = Cutter(1)
        for bomb in bombs():
            for fragment in cutter.cut([bomb]):
                client.gateway.send_parts(fragment, timeout=10)
                pool.collector.send_parts([pool.token, *fragment], timeout=10)
            siege.work(10)
        wait_until(lambda: "`str` of length <= 1024" in keyed.hub.errors)
        assert [row["name"] for row in mesh.status()["clients"] if len(row["name"]) > 1024] == []


@pytest.mark.smoke
def test_A09_no_pool_answers_for_another(keyed: Cluster, false_pool: FalsePool, tmp_path: Path):
    """Of another's task: results and failures, of this and of later attempts, in any session and epoch."""
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    welcome, _ = false_pool.join("false")
    epoch, own = welcome.epoch, welcome.session
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        future = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(journal.exists)
        client, seq = (half(ids.parse(future.task_id)) for half in (ids.client_of, ids.seq_of))
        sessions = [
            (epoch, own),
            (epoch, 1),
            (epoch, 9999),
            (epoch, -1),
            (epoch, 0),
            (epoch - 1, own),
            (0, 0),
        ]
        for number, ((of, session), attempt) in enumerate(itertools.product(sessions, (0, 1, 2, 99)), 1):
            done = DoneRun(1, client, attempt, "false/0", [seq], [dumps("forged")], 0.1)
            failed = Failed(client, seq, attempt, "crash")
            held = Held(client, attempt, [seq])
            false_pool.say(m.Results(of, session, number, [done], [failed], [held]))
        false_pool.say(m.Bye(epoch, 1))
        false_pool.say(m.Beat(epoch, 1, "first", 0, 0, 0, [], "draining"))
        false_pool.say(m.PoolNeedSpec(epoch, own, [1]))
        false_pool.say(m.Beat(epoch, own, "false", 0, 0, 0, []))
        false_pool.heard(m.BeatReply, 20)  # the hub has taken in all that came before

        assert not future.done()
        assert {pool["pool"]: pool["state"] for pool in mesh.status()["pools"]}["first"] == "ready"
        assert "sends for a session that is not its own" in keyed.hub.errors
        gate.touch()
        assert future.result(20) == "held"
        assert words(journal) == ["held"]


class Recorder:
    """A relay in front of a hub's gateway that keeps what clients say, byte for byte."""

    def __init__(self, gateway: str) -> None:
        self.to = tcp_parts(gateway)
        self.said: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                far = socket.create_connection(self.to)
                self.said.append(b"")
                for thread in (
                    threading.Thread(target=self._pass, args=(near, far, len(self.said) - 1)),
                    threading.Thread(target=self._pass, args=(far, near, -1)),
                ):
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket, kept: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if kept >= 0:
                    self.said[kept] += data
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self._threads:
            thread.join(5)


def test_A10_a_recorded_session_is_worth_nothing(keyed: Cluster, tmp_path: Path):
    """Whoever has seen every byte of a session and says it again, a hundred times, gets nothing done."""
    recorder = Recorder(keyed.address)
    try:
        with Mesh(recorder.address, keys=keyed.client, open_timeout=20) as mesh:
            assert mesh.submit(workload.note, str(tmp_path / "journal"), "once").result(20) == "once"
    finally:
        recorder.close()
    (said,) = [each for each in recorder.said if each]
    assert len(said) > 500

    with keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        for turn in range(100):
            with contextlib.suppress(OSError), socket.create_connection(recorder.to, timeout=10) as again:
                again.sendall(said)
                again.shutdown(socket.SHUT_WR)
                while again.recv(65536):
                    pass
            if turn % 20 == 0:
                siege.work(10)
        assert words(tmp_path / "journal") == ["once"]


def test_A10_messages_said_again_are_heard_once(keyed: Cluster, meet: Meet, tmp_path: Path):
    keyed.pools["first"].end()
    bare = Path(keyed.ring.peer("worker", "bare"))
    (bare / "mesh.secret").unlink()
    keyed.programs.worker(keyed.address, "--name", "bare", "--keys", str(bare))
    (Path(keyed.client) / "mesh.secret").unlink()  # the false client signs nothing
    peer = meet("client", "mallory")
    spec = Spec(dump_function(workload.note), "note")
    number = spec_number(spec)
    call = dumps(((str(tmp_path / "journal"), "once"), {}))
    said = [
        m.ClientHello(7, 0),
        m.Submit(1, [(number, spec)], [Run(number, 0, [1], [call])]),
        m.CancelTasks([9]),
    ]
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        for _ in range(100):
            for message in said:
                peer.say(message)
        wait_until(lambda: words(tmp_path / "journal"))
        own = f"{7:016x}"  # its task has begun; that of a message heard twice would stay
        wait_until(lambda: [row["tasks"] for row in mesh.status()["clients"] if row["client"] == own] == [0])
    assert words(tmp_path / "journal") == ["once"]


@pytest.mark.smoke
def test_A11_the_same_ids_of_two_clients_are_two_clients_tasks(keyed: Cluster, meet: Meet):
    """An id's first half is the session's, which belongs to a key; the other's claim to it is refused."""
    spec = Spec(b"no function", "none", queue="nobody")
    number = spec_number(spec)
    first, second = meet("client", "one"), meet("client", "two")
    assert isinstance(first.ask(m.ClientHello(7, 0)), m.ClientWelcome)
    submit = m.Submit(1, [(number, spec)], [Run(number, 0, [1, 2, 3], [b"x"] * 3)])
    assert first.ask(submit) == m.Accepted(1)
    assert second.ask(m.ClientHello(7, 0)) == m.ClientRefused("this client session belongs to another key")
    assert isinstance(second.ask(m.ClientHello(8, 0)), m.ClientWelcome)

    assert second.ask(submit) == m.Accepted(1)
    second.say(m.CancelTasks([1, 2, 3]))

    with keyed.mesh() as mesh:
        wait_until(lambda: mesh.status()["tasks"]["queued"] == 3)
        tasks = {row["client"]: row["tasks"] for row in mesh.status()["clients"]}
        assert (tasks[f"{7:016x}"], tasks[f"{8:016x}"]) == (3, 0)


def test_A12_beats_without_end(keyed: Cluster, false_pool: FalsePool):
    welcome, _ = false_pool.join("false")
    beat = m.Beat(welcome.epoch, welcome.session, "false", 0, 0, 0, [Progress(1, 1, 1, 0, -1)] * 5)
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        for turn in range(100_000):
            false_pool.say(beat)
            if turn % 20_000 == 0:
                siege.work()


def test_A12_an_inventory_of_a_million_tasks(keyed: Cluster, false_pool: FalsePool):
    held = [Held(client, 1, list(range(10_000))) for client in range(1, 101)]
    hello = m.Hello("false", 98, 1, 1, ["none"], [], 0, 0, held, key=bytes(32))
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        for number in range(3):
            hello.number = number + 1
            false_pool.say(hello)
            siege.work()


@pytest.mark.smoke
def test_A13_more_tasks_than_a_client_may_have(programs: Programs, ring: Ring):
    """They wait in its own process; what it says beyond that is BUSY, and the hub keeps nothing of it."""
    programs.env |= {"TASKMESH_CLIENT__MAX_PENDING": "1000"}
    keyed = Cluster.keyed(programs, ring)
    spec = Spec(b"no function", "none", queue="nobody")
    number = spec_number(spec)
    with Context() as context, keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        peer = Peer(context, keyed, "client", "mallory")
        assert isinstance(peer.ask(m.ClientHello(7, 0)), m.ClientWelcome)
        for turn in range(20_000):
            runs = [Run(number, 0, list(range(10 * turn, 10 * turn + 10)), [bytes(500)] * 10)]
            peer.say(m.Submit(turn + 1, [(number, spec)], runs))
            if turn % 5000 == 0:
                siege.work()
        heard = set()
        with contextlib.suppress(NoMessageWithinTimeout):
            while True:
                heard.add(type(peer.heard(timeout=1)))
        tasks = {row["client"]: row["tasks"] for row in mesh.status()["clients"]}
        peer.close()
    assert heard == {m.Accepted, m.Busy}
    assert tasks[f"{7:016x}"] == 1000


def test_A13_a_link_has_one_session_whatever_it_says(keyed: Cluster, meet: Meet):
    peer = meet("client", "mallory")
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        for client in range(1, 20_001):
            peer.say(m.ClientHello(client, 0))
        with contextlib.suppress(NoMessageWithinTimeout):
            while True:
                peer.heard(timeout=1)
        present = [row for row in mesh.status()["clients"] if row["present"]]
        assert len(present) <= 2
        assert len(mesh.status()["clients"]) <= 10_001


def test_A14_topics_without_end(keyed: Cluster, meet: Meet):
    peer = meet("worker", "mallory")
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub, patience=40) as siege:
        with Sub(peer.context, replace(peer.options, send_hwm_messages=0)) as flood:
            flood.connect(peer.hub.control)
            for number in range(200_000):
                flood.subscribe(b"topic-%032d" % (number * 7919 % 1_000_003))
                if number % 50_000 == 0:
                    siege.work()
            wait_until(lambda: "control.flooded" in keyed.hub.errors, 30)
        assert '"from": "worker:mallory"' in keyed.hub.errors


def test_A14_a_topic_above_the_wall_cuts_off_who_asks_for_it(keyed: Cluster, meet: Meet):
    peer = meet("worker", "mallory")
    greedy = Sub(peer.context, peer.options)
    peer.sockets.append(greedy)
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub), greedy.monitor() as monitor:
        greedy.connect(peer.hub.control)
        monitor.wait_for(EventKind.HANDSHAKE_SUCCEEDED, 10)
        greedy.subscribe(
            b"t" * 2 * profiles.NOTHING
        )  # of 1 MB it would overflow our own stack, not the hub's
        monitor.wait_for(EventKind.DISCONNECTED, 10)
