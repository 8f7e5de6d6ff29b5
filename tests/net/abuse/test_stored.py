"""Abuse list, the row about what stands in a hub's store: A17 of docs/security.md."""

from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.errors import BadSignature
from taskmesh.stores.codec import from_bytes, to_bytes
from tests.harness.cluster import Cluster
from tests.harness.journal import words
from tests.harness.programs import Programs
from tests.harness.redis_server import RedisServer
from tests.net import workload
from tests.net.keeping import hub_with, keep, store, stored

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.mark.parametrize("how", ["changed", "another task's", "unsigned"])
def test_A17_a_stored_result_that_was_changed_is_refused_by_the_client(
    keyed_store: Cluster, server: RedisServer, tmp_path: Path, how: str
):
    journal = str(tmp_path / "journal")
    with keyed_store.mesh() as mesh:
        for key in ("k", "l"):
            assert keep(mesh, workload.noted, (journal, key), key).result(20) == key
        stored(mesh, 2)
    with server.client() as client:
        kept = {from_bytes(client.get(place)).key: place for place in server.stored()}
        own, others = (from_bytes(client.get(kept[key])) for key in ("k", "l"))
        payload = own.done[0].payloads[0]
        lies = {
            "changed": payload[:-3] + b"X" + payload[-2:],
            "another task's": others.done[0].payloads[0],
            "unsigned": payload[36:],
        }
        own.done[0].payloads[:] = [lies[how]]
        client.set(kept["k"], to_bytes(own), keepttl=True)

    keyed_store.hub.kill()
    keyed_store.start_hub()

    with keyed_store.mesh(keyed_store.keys("client", "bob")) as mesh:
        error = keep(mesh, workload.noted, (journal, "k"), "k").exception(20)
        assert keep(mesh, workload.noted, (journal, "l"), "l").result(20) == "l"
    assert isinstance(error, BadSignature)
    assert words(Path(journal)) == ["k", "l"]


def test_A17_a_hub_lives_with_whatever_stands_in_redis(
    programs: Programs, server: RedisServer, tmp_path: Path
):
    journal, marker = str(tmp_path / "journal"), tmp_path / "unpickled"
    hub, address = hub_with(programs, server)
    programs.worker(address)
    with Mesh(address) as mesh:
        for number in range(6):
            keep(mesh, workload.noted, (journal, f"{number}"), f"k{number}").result(20)
        stored(mesh, 6)
        hub.kill()
        bomb = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
        with server.client() as client:
            first, second, third, fourth, fifth, _ = server.stored()
            client.set(first, bomb, keepttl=True)
            client.set(second, client.get(second)[:-4], keepttl=True)
            client.delete(third)
            client.hset(third, mapping={"a": "hash"})
            client.set(fourth, b"TMK\x63" + client.get(fourth)[4:], keepttl=True)
            client.persist(fifth)

        again, _ = hub_with(programs, server, address)
        results = [
            keep(mesh, workload.noted, (journal, f"{number}"), f"k{number}").result(60) for number in range(6)
        ]
        assert results == [f"{number}" for number in range(6)]
        assert (store(mesh)["loaded"], store(mesh)["skipped"]) == (1, 5)

    assert len(words(Path(journal))) == 6 + 5
    assert again.errors.count('"event": "store.skipped"') == 1
    assert not marker.exists()
