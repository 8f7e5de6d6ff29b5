"""Abuse list, rows of those who name what is another key's: sessions, pools, specs, sinks, promises, keys."""

from pathlib import Path

import pytest

from taskmesh import Mesh, task
from taskmesh.core import ids
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held
from taskmesh.security.keys import raw_key
from taskmesh.sockets import Context, new_key_pair
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload
from tests.hosting.intruder import FalsePool, Meet, Peer

pytestmark = pytest.mark.timeout(150)

ANOTHER_S = m.ClientRefused("this client session belongs to another key")


def own_session(mesh: Mesh) -> int:
    """Return the id of a mesh's client, which stands in every status; it is the only one."""
    [row] = mesh.status()["clients"]
    return int(row["client"], 16)


def test_A11_nobody_is_another_s_client(keyed: Cluster, meet: Meet, tmp_path: Path):
    """Also not once thousands of other sessions have come over one link, and not the hub's own client."""
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with keyed.mesh() as mesh:
        future = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(journal.exists, 20)
        victim = own_session(mesh)
        mallory = meet("client", "mallory")
        welcome = mallory.ask(m.ClientHello(1 << 40, 0))
        assert isinstance(welcome, m.ClientWelcome)
        for client in range(2000):
            mallory.say(m.ClientHello((1 << 41) + client, 0))
        second = meet("client", "mallory2")
        for client in (victim, ids.house_of(welcome.epoch)):
            assert second.ask(m.ClientHello(client, 0)) == ANOTHER_S

        gate.touch()
        assert future.result(20) == "held"
        assert mesh.submit(workload.add, 1, 2).result(20) == 3


def test_A11_a_restart_with_a_journal_gives_no_session_away(programs: Programs, ring: Ring, tmp_path: Path):
    cluster = Cluster(programs, ring)
    journal = {"TASKMESH_JOURNAL": str(tmp_path / "tasks.journal")}
    cluster.start_hub(env=journal)
    with Context() as context, cluster.mesh() as mesh:
        mesh.submit(workload.add, 1, 2)
        mesh.flush(20)
        victim = own_session(mesh)
        cluster.hub.kill()
        peer = Peer(context, cluster, "client", "mallory")
        cluster.start_hub(env=journal)
        try:
            assert peer.ask(m.ClientHello(victim, 0)) == ANOTHER_S
        finally:
            peer.close()
        cluster.start_worker("first")


def test_A09_no_pool_takes_another_s_session_over(keyed: Cluster, meet: Meet, tmp_path: Path):
    """A Welcome on the control channel tells a pool's name, instance and number to every worker's key."""
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    false_pool = FalsePool(meet("worker", "mallory"))
    keyed.start_worker("victim", "--queues", "victim")
    heard = false_pool.heard(m.Welcome, 10)
    with keyed.mesh() as mesh:
        future = task(queue="victim")(workload.hold).submit(str(journal), "held", str(gate))
        wait_until(journal.exists, 20)
        client, seq = ids.client_of(ids.parse(future.task_id)), ids.seq_of(ids.parse(future.task_id))
        held, pair = [Held(client, 1, [seq])], new_key_pair()
        hello = m.Hello(heard.pool, heard.instance, heard.number + 1, 1, ["victim"], [], heard.epoch, 0, held)
        hello.key = raw_key(pair.public)

        false_pool.say(hello)

        wait_until(lambda: "of pool victim is another's" in keyed.hub.errors)
        sessions = {pool["pool"]: pool["session"] for pool in mesh.status()["pools"]}
        assert sessions["victim"] == heard.session
        gate.touch()
        assert future.result(20) == "held"
