"""The mesh key in a mesh of real processes: a hub that lies makes nobody run or unpickle anything."""

import json
import logging
import struct
from pathlib import Path

import pytest
from msgspec.structs import replace

from taskmesh import Mesh
from taskmesh.core.ids import task_id, text_of
from taskmesh.core.specs import spec_number
from taskmesh.errors import BadSignature
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, LaneRun, Run, Spec
from taskmesh.messages.signing import LENGTH, split_key, with_key
from taskmesh.security.keys import KeyFolder
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.serialize.code import dump_function
from taskmesh.shm.blob import Blob
from tests.harness.cluster import Cluster
from tests.harness.journal import words
from tests.harness.keys import Ring
from tests.harness.program import END_S, Program
from tests.harness.programs import Programs
from tests.hosting import workload

LYING_HUB = """
import sys
from taskmesh.cli import main
from taskmesh.hub.sockets import HubSockets
from taskmesh.messages import mesh_messages as m
from taskmesh.serialize.code import dump_function
from taskmesh.serialize.payload import dumps
from taskmesh.core.specs import spec_number
from taskmesh.messages.runs import Spec
from tests.hosting import workload

lie, marker = sys.argv[1:3]
del sys.argv[1:3]
push, send_client = HubSockets.push, HubSockets.send_client
first = []
evil = dumps(((marker, "evil"), {}))


def lying_push(self, action):
    message = action.message
    for run in message.runs:
        if lie == "payload":
            run.payloads[:] = [bytes(payload[:36]) + evil for payload in run.payloads]
        elif lie == "unsigned":
            run.payloads[:] = [evil for _ in run.payloads]
        elif lie == "replayed":
            first.extend(run.payloads[: not first])
            run.payloads[:] = [first[0] for _ in run.payloads]
    if lie == "function":
        made = [Spec(dump_function(workload.size_of), spec.name) for _, spec in message.specs]
        message.specs[:] = [(spec_number(spec), spec) for spec in made]
        for run in message.runs:
            run.spec = message.specs[0][0] if message.specs else run.spec
    push(self, action)


def lying_send(self, action):
    message = action.message
    if lie == "result" and isinstance(message, m.Deliver):
        for run in message.done:
            run.payloads[:] = [evil for _ in run.payloads]
    send_client(self, action)


HubSockets.push, HubSockets.send_client = lying_push, lying_send
sys.exit(main())
"""


class LyingHub(Program):
    """A hub that changes what passes through it."""

    def __init__(self, folder: Path, lie: str, keys: Path) -> None:
        script = folder / "lying.py"
        script.write_text(LYING_HUB)
        arguments = ["hub", "--bind", "tcp://127.0.0.1:0", "--keys", str(keys), "--json"]
        super().__init__(folder, "lying", [str(script), lie, str(folder / "evil"), *arguments])


@pytest.mark.smoke
@pytest.mark.parametrize("lie", ["payload", "unsigned", "replayed", "function", "result"])
def test_a_hub_that_lies_gets_nothing_run_and_nothing_unpickled(
    programs: Programs, ring: Ring, tmp_path: Path, lie: str
):
    hub = LyingHub(tmp_path, lie, ring.hub.path)
    programs.started.append(hub)
    address = hub.ready()["gateway"]
    programs.worker(address, "--keys", ring.peer("worker", "first"))

    with Mesh(address, keys=ring.peer("client", "alice"), open_timeout=20) as mesh:
        futures = [mesh.submit(workload.note, str(tmp_path / "honest"), f"word{n}") for n in range(2)]
        errors = [future.exception(END_S) for future in futures]

    if lie == "replayed":
        assert errors.pop(0) is None
    assert {type(error) for error in errors} == {BadSignature}, errors
    assert "signed" in str(errors[0]) or "signature" in str(errors[0])
    assert not (tmp_path / "evil").exists()
    runs = {"replayed": 1, "result": 2}.get(lie, 0)
    assert len(words(tmp_path / "honest")) == runs


@pytest.mark.parametrize("has", ["none", "another"])
def test_a_client_without_the_mesh_key_of_the_pools_is_told_to_copy_it(keyed: Cluster, has: str):
    folder = Path(keyed.client)
    (folder / "mesh.secret").unlink()
    if has == "another":
        made = KeyFolder(keyed.ring.folder / "made")
        made.new(["worker"])
        (made.path / "mesh.secret").rename(folder / "mesh.secret")

    with keyed.mesh() as mesh:
        future = mesh.submit(workload.add, 1, 2)
        error = future.exception(20)

    assert "mesh.secret" in str(error)
    assert "was not run" in str(error)


def test_a_pool_without_the_mesh_key_of_the_clients_says_so(programs: Programs, ring: Ring):
    keyed = Cluster.keyed(programs, ring)
    keyed.pools["first"].end()
    bare = ring.peer("worker", "bare")
    (Path(bare) / "mesh.secret").unlink()
    programs.worker(keyed.address, "--keys", bare)

    with keyed.mesh() as mesh:
        error = mesh.submit(workload.add, 1, 2).exception(20)

    assert isinstance(error, BadSignature)
    assert "this program has no mesh key" in str(error)


def test_exceptions_chunks_and_large_values_are_signed_too(keyed: Cluster):
    with keyed.mesh() as mesh:
        error = mesh.submit(workload.refuse, "no").exception(20)
        assert type(error) is workload.Refusal
        assert list(mesh.map(workload.add, range(300), range(300), chunksize=50)) == list(range(0, 600, 2))
        data = bytes(range(256)) * 4000
        assert mesh.submit(workload.echo, data).result(20) == data


def test_the_pool_in_a_hubs_own_process_verifies_too(programs: Programs, ring: Ring):
    (ring.hub.path / "mesh.secret").write_bytes(ring.mesh.read_bytes())
    (ring.hub.path / "mesh.secret").chmod(0o600)
    program = programs.start(
        "up", "--bind", "tcp://127.0.0.1:0", "--keys", str(ring.hub.path), "--json", "--concurrency", "1"
    )
    address = program.ready()["gateway"]

    with Mesh(address, keys=ring.peer("client", "alice"), open_timeout=20) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        assert list(mesh.map(workload.add, range(30), range(30), chunksize=5)) == list(range(0, 60, 2))


def test_outcomes_that_are_shared_under_a_key_are_signed_for_it(keyed: Cluster, tmp_path: Path):
    journal, gate = str(tmp_path / "journal"), tmp_path / "gate"

    with keyed.mesh() as one, keyed.mesh(keyed.ring.peer("client", "bob")) as other:
        first = one.with_options(key="shared:k").submit(workload.hold, journal, "once", str(gate))
        one.flush(20)
        second = other.with_options(key="shared:k").submit(workload.hold, journal, "once", str(gate))
        other.flush(20)
        gate.touch()

        assert first.result(20) == second.result(20)
        assert words(tmp_path / "journal").count("once") == 1


def test_an_outcome_with_a_key_is_its_task_s_as_well(keyed: Cluster):
    """Those who know the task by its id do not know the key."""
    with keyed.mesh() as mesh, keyed.mesh() as other:
        first = mesh.with_options(key="a", keep=60).submit(workload.add, 1, 2)
        bad = mesh.with_options(key="b", keep=60).submit(workload.add, 1, "2")

        assert other.attach(first.task_id).result(20) == 3
        assert type(other.attach(bad.task_id).exception(20)) is TypeError


def test_programs_that_want_other_lines_of_a_task_share_its_outcome_by_key(keyed: Cluster, caplog, capfd):
    with keyed.mesh() as mesh, keyed.mesh() as other:
        first = mesh.with_options(key="a", keep=60).submit(workload.add, 1, 2)
        assert first.result(END_S) == 3
        with caplog.at_level(logging.DEBUG):
            chatty = other.with_options(key="a", keep=60, stream_logs=True).submit(workload.add, 1, 2)

        assert chatty.result(END_S) == 3


@pytest.mark.parametrize("large", [False, True])
def test_a_key_that_the_hub_changes_breaks_the_signature(large):
    seal, pool = PayloadSigner([b"k" * 32]), PayloadSigner([b"k" * 32])
    one = Spec(dump_function(workload.add), "add")
    number = spec_number(one)
    payload = Blob.from_parts([b"head", b"x" * 100_000]) if large else b"payload"
    sent = seal.submit(
        m.Submit(1, [(number, one)], [Run(number, 0, [7], [payload], "mine")]), 5, lambda _: []
    )
    (signed,) = sent.runs[0].payloads

    good = pool.tasks(_tasks(number, one, signed)).runs
    key, inner = split_key(signed)
    bad = pool.tasks(_tasks(number, one, with_key(b"other", inner))).runs
    none = pool.tasks(_tasks(number, one, inner)).runs

    assert key == b"mine"
    assert [(run.spec, run.seqs, len(run.payloads[0])) for run in good] == [(number, [7], len(payload))]
    assert number not in {run.spec for run in [*bad, *none]}
    done = DoneRun(number, 5, 3, "p/0", [7], [b"result"], 0.1, returns=2)
    results = pool.results(m.Results(1, 1, 1, [done], [], []))
    mine = seal.deliver(m.Deliver(1, 1, results.done, []))
    assert [run.payloads for run in mine.done] == [[b"result"]]
    others = [replace(run, seqs=[8]) for run in results.done]
    (refused,) = PayloadSigner([b"k" * 32]).deliver(m.Deliver(1, 1, others, [])).failed
    assert (refused.kind, refused.attempt) == ("signature", 1)


def test_a_hub_that_takes_the_beginning_of_a_payload_for_a_key_gets_nothing_run():
    """What it cuts off may end where an argument begins that is a pickle itself, of whoever made it."""
    seal, pool = PayloadSigner([b"k" * 32]), PayloadSigner([b"k" * 32])
    one = Spec(dump_function(workload.add), "add")
    number = spec_number(one)
    run = Run(number, 0, [7], [b"begin" + b"evil"])
    (signed,) = seal.submit(m.Submit(1, [(number, one)], [run]), 5, lambda _: []).runs[0].payloads
    cut = with_key(b"begin", signed[:LENGTH] + b"evil")

    runs = pool.tasks(_tasks(number, one, cut)).runs

    assert b"evil" not in [payload for run in runs for payload in run.payloads]
    assert number not in {run.spec for run in runs}


def test_a_signature_holds_for_no_function_that_is_not_known():
    """Without the function's digest another client and number, and a key, could make up the same context."""
    seal, pool = PayloadSigner([b"k" * 32]), PayloadSigner([b"k" * 32])
    one = Spec(dump_function(workload.add), "add")
    number = spec_number(one)
    run = Run(number, 0, [7], [b"payload"])
    (signed,) = seal.submit(m.Submit(1, [(number, one)], [run]), 5, lambda _: []).runs[0].payloads
    context = seal._digests[number] + struct.pack(">QQ", 5, 7)
    client, seq = struct.unpack(">QQ", context[:16])
    made_up = LaneRun(number + 1, client, 1, 0, [seq], [with_key(context[16:], signed)])

    runs = pool.tasks(m.Tasks(1, 1, 1, 0, 0.0, [], [made_up])).runs

    assert number + 1 not in {run.spec for run in runs}


def test_a_dead_letter_is_signed_anew_by_the_client_whose_call_it_was(keyed: Cluster, tmp_path: Path):
    gate = tmp_path / "gate"
    with keyed.mesh() as mesh:
        failing = mesh.with_options(detach=True).submit(workload.fail_until, str(gate))
        mesh.flush(END_S)
        assert type(failing.exception(END_S)) is workload.Refusal
    gate.touch()

    bare = Path(keyed.ring.peer("client", "bare"))
    (bare / "mesh.secret").unlink()
    other = _replay(keyed, failing.task_id, str(bare))
    secret = Path(keyed.client) / "mesh.secret"
    secret.rename(tmp_path / "away")
    missing = _replay(keyed, failing.task_id, keyed.client)
    (tmp_path / "away").rename(secret)
    replayed = _replay(keyed, failing.task_id, keyed.client)

    assert (other[0], "alice" in other[1]["error"]) == (1, True)
    assert (missing[0], "mesh.secret" in missing[1]["error"]) == (1, True)
    assert (replayed[0], replayed[1]["letter"]) == (0, failing.task_id)
    with keyed.mesh() as mesh:
        assert mesh.attach(replayed[1]["task_id"]).result(END_S) == 1
        after = mesh.with_options(after=replayed[1]["task_id"]).submit(workload.add, 1, 2)
        assert after.result(END_S) == 3, "the replay has succeeded"
        key = f"dead letter {failing.task_id}"
        gate.unlink()
        told = mesh.with_options(detach=True, key=key).submit(workload.fail_until, str(gate))
        assert told.result(END_S) == 1, "its result answers those who ask by its key"


def _replay(cluster: Cluster, letter: str, keys: str) -> tuple[int, dict[str, str]]:
    arguments = ("dead", "replay", letter, "--address", cluster.address, "--keys", keys, "--json")
    told = cluster.programs.run(*arguments)
    (row,) = json.loads(told.stdout)
    return told.returncode, row


@pytest.mark.parametrize("forged", ["nothing", "call", "id", "function", "unsigned"])
def test_a_forged_call_of_a_dead_letter_is_not_signed_anew(forged: str):
    client = PayloadSigner([b"k" * 32])
    one, run = Spec(dump_function(workload.add), "add"), Run(0, 0, [7], [b"payload"], "mine")
    run.spec = spec_number(one)
    (signed,) = client.submit(m.Submit(1, [(run.spec, one)], [run]), 5, lambda _: []).runs[0].payloads
    seq = 8 if forged == "id" else 7
    spec = Spec(dump_function(workload.size_of), "add") if forged == "function" else one
    payload = {"call": signed[:-1] + b"!", "unsigned": b"payload"}.get(forged, signed)
    letter = Run(run.spec, 0, [seq], [payload], "mine")

    answer = PayloadSigner([b"k" * 32]).answer(m.Answer(1, text_of(task_id(5, seq)), "", [spec], [letter]))

    if forged == "nothing":
        assert [told.payloads for told in answer.runs] == [[b"payload"]]
    else:
        assert (answer.value, answer.runs, "cannot be signed anew" in answer.error) == (None, [], True)


def _tasks(number: int, one: Spec, payload: object) -> m.Tasks:
    return m.Tasks(1, 1, 1, 0, 0.0, [(number, one)], [LaneRun(number, 5, 1, 0, [7], [payload])])
