"""Tasks that depend on others, over tcp and with keys: outcomes that hub and pools hold, restarts, lies."""

import os

import pytest

from taskmesh import Mesh
from taskmesh.errors import BadSignature, ConfigError, DependencyError, TaskExpired
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, LaneRun, Run, Spec, Value
from taskmesh.security.keys import KeyFolder
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.serialize.dependencies import provided, provided_value
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.hosting import workload

END_S = 30


def test_values_over_tcp_with_keys(programs: Programs, ring: Ring):
    keyed = Cluster.keyed(programs, ring)

    with keyed.mesh() as mesh:
        small = [mesh.submit(workload.add, x, 1) for x in range(50)]
        assert [one.result(END_S) for one in [mesh.submit(workload.echo, x) for x in small]] == [
            *range(1, 51)
        ]
        data = mesh.submit(os.urandom, 3_000_000)
        assert mesh.submit(workload.size_of, mesh.submit(workload.echo, data)).result(END_S) == 3_000_000
        assert mesh.submit(workload.size_of, data).result(END_S) == 3_000_000
        taken = mesh.submit(workload.add, 2, 3)
        assert taken.result(END_S) == 5
        assert mesh.submit(workload.add, taken, taken).result(END_S) == 10
        blocked = mesh.submit(workload.echo, mesh.submit(workload.refuse, "no"))
        with pytest.raises(DependencyError) as caught:
            blocked.result(END_S)
        assert isinstance(caught.value.__cause__, workload.Refusal)


@pytest.mark.parametrize("place", ["embedded", "hub"])
def test_large_values_of_many_chains_are_each_their_own(programs: Programs, place: str):
    """Their memory files are used again: by client, hub, pool and slots, but not while one of these reads."""
    address = programs.hub()[1] if place == "hub" else None
    if address:
        programs.worker(address, slots=2)
    with Mesh(address) if address else Mesh(workers=2) as mesh:
        firsts = [mesh.submit(workload.repeated, number % 251, 150_000) for number in range(300)]
        seconds = [mesh.submit(workload.echo, first) for first in firsts]
        ends = [mesh.submit(workload.content, second) for second in seconds]
        del firsts, seconds

        assert [end.result(END_S) for end in ends] == [(150_000, {number % 251}) for number in range(300)]


def test_the_result_of_a_key_is_no_argument_where_results_are_signed(programs: Programs, ring: Ring):
    keyed = Cluster.keyed(programs, ring)

    with keyed.mesh() as mesh:
        shared = mesh.with_options(key="k").submit(workload.add, 1, 2)
        with pytest.raises(ConfigError, match="wait for it with after="):
            mesh.submit(workload.echo, shared)
        assert mesh.with_options(after=shared).submit(workload.add, 4, 5).result(END_S) == 9


def test_promises_and_values_with_keys(programs: Programs, ring: Ring):
    keyed = Cluster.keyed(programs, ring)

    with keyed.mesh() as mesh, keyed.mesh(ring.peer("client", "bob")) as other:
        approval = mesh.promise("shared:approve")
        own = mesh.promise("own", expires=2.0)
        assert other.fulfil("own", "another key's") is True
        assert other.promise("own").result(END_S) == "another key's"
        shipped = mesh.submit(workload.echo, approval)
        assert other.fulfil("shared:approve", [1, 2]) is True
        assert (shipped.result(END_S), approval.result(END_S)) == ([1, 2], [1, 2])
        assert mesh.submit(workload.echo, approval).result(END_S) == [1, 2]  # the client brings it
        assert other.promise("shared:approve").result(END_S) == [1, 2]
        denied = mesh.submit(workload.echo, mesh.promise("shared:deny"))
        assert other.fulfil("shared:deny", error=workload.Refusal("no")) is True
        with pytest.raises(DependencyError) as caught:
            denied.result(END_S)
        assert isinstance(caught.value.__cause__, workload.Refusal)
        with pytest.raises(TaskExpired):
            own.result(END_S)
        data = mesh.put(os.urandom(3_000_000))
        assert [mesh.submit(workload.size_of, data).result(END_S) for _ in range(3)] == [3_000_000] * 3
        with mesh.batch() as batch:
            added = batch.submit(workload.add, 1, 2)
        assert mesh.with_options(after=list(batch)).submit(workload.echo, added).result(END_S) == 3


@pytest.mark.parametrize("lie", ["another's", "another key", "unsigned"])
def test_the_value_of_a_promise_is_signed_for_its_key(keys, lie):
    client, pool = PayloadSigner(keys), PayloadSigner(keys)
    fulfilled = client.fulfil(m.Fulfil(1, "k", b"value"))
    value = Value(1, fulfilled.payload, key="k")
    assert pool._verified_value(7, value).payload == b"value"

    match lie:
        case "another's":
            value.key = ""
        case "another key":
            value.key = "other"
        case "unsigned":
            value.payload = b"value"
    assert pool._verified_value(7, value).failed.kind == "signature"


def test_the_value_of_another_promise_is_refused_in_the_slot():
    with (
        provided([Value(3, b"", key="other")]),
        pytest.raises(BadSignature, match="another promise, 'other'"),
    ):
        provided_value(3, "k")


def signed(keys: tuple[bytes, ...]) -> tuple[PayloadSigner, m.Tasks]:
    """A pool's signer, and a task for it with the outcome that another pool has signed."""
    spec = Spec(b"Ros\0getpid", "os.getpid")
    client, pool = PayloadSigner(keys), PayloadSigner(keys)
    submit = m.Submit(1, [(5, spec)], [Run(5, 0, [2], [b"call"], needs=[[1]])])
    run = client.submit(submit, 7, lambda numbers: []).runs[0]
    done = DoneRun(5, 7, 1, "p/0", [1], [b"value"], 0.1)
    results = pool.results(m.Results(1, 1, 1, [done], [], []))
    value = Value(1, results.done[0].payloads[0], "f", 1)
    lane = LaneRun(5, 7, 1, 0, [2], run.payloads, [[1]], [value])
    return pool, m.Tasks(1, 1, 1, 0, 0.0, [(5, spec)], [lane])


@pytest.fixture
def keys(ring: Ring) -> tuple[bytes, ...]:
    return KeyFolder(ring.peer("client", "someone")).mesh_keys()


class TestSignedValues:
    def test_one_that_holds_is_handed_on_plain(self, keys):
        pool, tasks = signed(keys)
        pool._learn([(5, tasks.specs[0][1])])

        value = pool._verified_value(7, tasks.runs[0].values[0])
        assert (value.payload, value.failed) == (b"value", None)

    @pytest.mark.parametrize("lie", ["another's", "unsigned", "changed"])
    def test_one_that_does_not_is_a_failure_that_says_so(self, keys, lie):
        pool, tasks = signed(keys)
        value = tasks.runs[0].values[0]
        match lie:
            case "another's":
                value.seq = 3
            case "unsigned":
                value.payload = b"value"
            case "changed":
                value.payload = value.payload[:-1] + b"!"

        verified = pool._verified_value(7, value)
        assert verified.payload == b""
        assert verified.failed.kind == "signature"

    def test_the_edges_of_a_run_stay(self, keys):
        pool, tasks = signed(keys)
        spec = tasks.specs[0][1]
        pool._digests.clear()
        run = pool._sorted_out(tasks.runs[0])[1]

        assert run.seqs == [2]  # its spec is not known: it is refused, and raises the error
        pool._learn([(5, spec)])
        good, refused = pool._sorted_out(tasks.runs[0])
        assert (good.needs, [value.payload for value in good.values], refused.seqs) == ([[1]], [b"value"], [])
