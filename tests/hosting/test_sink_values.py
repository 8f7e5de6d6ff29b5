"""Values that Spark's streams put into sinks, in a program and in a task, with real processes."""

import contextlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import pytest

from taskmesh import Mesh, TaskFuture
from taskmesh.client.sink import Sink, SinkInput
from taskmesh.core.specs import spec_number
from taskmesh.errors import MeshClosed, TaskTimeout, TooLarge
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import SINK_VALUE, SINK_VALUE_NAME, DoneRun, LaneRun, Run, Spec
from taskmesh.security.keys import KeyFolder
from taskmesh.security.payload_signing import PayloadSigner
from tests.harness.cluster import OVERRIDES, Cluster
from tests.harness.journal import Journal
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

WAIT_S = 30
LARGE = 10_000_000
THERE, BACK = "there", "back"


EVERYWHERE = pytest.mark.parametrize("mesh", ["embedded", "ipc", "tcp"], indirect=True)
INLINE_TOO = pytest.mark.parametrize("mesh", ["embedded", "inline", "ipc", "tcp"], indirect=True)


@pytest.fixture
def mesh(request: pytest.FixtureRequest, programs: Programs, tmp_path: Path):
    way = getattr(request, "param", "embedded")
    if way in {"embedded", "inline"}:
        with Mesh(workers=2) if way == "embedded" else Mesh.inline(workers=2) as mesh:
            yield mesh
        return
    bind = f"ipc://{tmp_path}/hub" if way == "ipc" else "tcp://127.0.0.1:0"
    address = programs.hub(bind)[1]
    programs.worker(address, slots=2)
    with Mesh(address) as mesh:
        yield mesh


def put(mesh: Mesh, sink: str, values: Iterable[bytes]) -> list[TaskFuture[None]]:
    way = SinkInput(mesh._client, sink)
    return [way.put(value) for value in values]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def taken(sink: Sink, count: int, timeout: float = WAIT_S) -> list[bytes]:
    """Take and acknowledge so many outcomes; return their messages."""
    values = []
    for _ in range(count):
        outcome = sink.get(timeout)
        values.append(outcome.message())
        sink.ack(outcome)
    return values


def ends(futures: list[TaskFuture[None]]) -> list[object]:
    return [future.result(WAIT_S) for future in futures]


@INLINE_TOO
def test_values_go_from_program_to_program_in_their_order(mesh: Mesh):
    futures = put(mesh, THERE, numbers(0, 3000))
    with mesh.sink(THERE) as sink:
        outcome = sink.get(WAIT_S)
        assert (outcome.message(), outcome.name, outcome.state) == (b"0", SINK_VALUE_NAME, "succeeded")
        assert not futures[0].done()
        sink.ack(outcome)

        assert taken(sink, 2999) == numbers(1, 3000)
    assert ends(futures) == [None] * 3000
    assert mesh.status()["sinks"] == []


@INLINE_TOO
def test_a_large_value_goes_there_as_it_is(mesh: Mesh):
    value = bytes(range(250)) * (LARGE // 250)
    futures = put(mesh, THERE, [memoryview(value), b""])
    with mesh.sink(THERE) as sink:
        assert taken(sink, 2) == [value, b""]
    assert ends(futures) == [None] * 2


@EVERYWHERE
def test_a_task_streams_its_results_and_is_done_when_they_are_acknowledged(mesh: Mesh):
    future = mesh.submit(workload.stream, BACK, 20)
    with mesh.sink(BACK) as sink:
        assert taken(sink, 19) == numbers(0, 19)
        assert not future.done()
        assert taken(sink, 1) == [b"19"]
    assert future.result(WAIT_S) == 20


@EVERYWHERE
def test_a_running_task_takes_from_one_sink_and_puts_into_another(mesh: Mesh):
    pump = mesh.submit(workload.doubled, THERE, BACK, 3)
    futures = put(mesh, THERE, [bytes([index]) * (LARGE // 2) for index in range(3)])

    with mesh.sink(BACK) as sink:
        assert taken(sink, 3) == [bytes([index]) * LARGE for index in range(3)]

    assert ends(futures) == [None] * 3
    assert pump.result(WAIT_S) == 3


def test_a_sink_that_a_task_has_left_open_ends_with_it(mesh: Mesh):
    for _ in range(2):  # the second may run in the same process
        assert mesh.submit(workload.opened, THERE).result(WAIT_S) == THERE

    wait_until(lambda: mesh.status()["sinks"] == [], WAIT_S)


def test_a_task_whose_values_nobody_takes_ends_with_its_timeout(mesh: Mesh):
    future = mesh.with_options(timeout=0.5).submit(workload.stream, BACK, 3)

    with pytest.raises(TaskTimeout):
        future.result(WAIT_S)


def test_values_of_a_task_that_fails_do_not_hold_it_up(mesh: Mesh):
    future = mesh.submit(workload.failed_after, BACK)

    with pytest.raises(ValueError, match="enough"):
        future.result(WAIT_S)


@EVERYWHERE
def test_one_thread_waits_for_outcomes_and_for_room_in_its_window(mesh: Mesh):
    """Put and take as a bridge does: a bounded number unacknowledged, and no thread of its own for either."""
    mesh.submit(workload.doubled, THERE, BACK, 20)
    window: deque[TaskFuture[None]] = deque()
    buffers = SinkInput(mesh._client, THERE)
    values: list[bytes] = []
    with mesh.sink(BACK, ack="manual") as sink:
        for index in range(20):
            while len(window) == 4:
                assert sink.wait(window[0].done, WAIT_S)
                if window[0].done():
                    window.popleft()
                else:
                    values += taken(sink, 1)
            window.append(buffers.put(bytes([index])))
            window[-1].add_done_callback(lambda _: sink.wake())
        values += taken(sink, 20 - len(values))
        assert not sink.wait(lambda: False, 0.01)
        assert sink.wait(lambda: True)
    with pytest.raises(MeshClosed):
        sink.wait(lambda: False)
    assert values == [bytes([index]) * 2 for index in range(20)]


def test_a_value_that_is_given_up_ends_at_once(mesh: Mesh):
    (future,) = put(mesh, THERE, [b"1"])
    assert future.cancel()
    assert future.cancelled()


def test_a_value_above_max_payload_is_refused(programs: Programs):
    address = programs.hub()[1]
    with Mesh(address, max_payload="1MiB") as mesh, pytest.raises(TooLarge, match="a message for sink"):
        put(mesh, THERE, [bytes(2 << 20)])


@pytest.mark.parametrize("signed", [True, False], ids=["mesh.secret", "no-mesh.secret"])
def test_with_keys_values_of_programs_and_tasks_are_verified(programs: Programs, ring: Ring, *, signed: bool):
    cluster = Cluster(programs, ring)
    cluster.start_hub(bind="tcp://127.0.0.1:0")
    if not signed:
        for folder in cluster.client, cluster.keys("worker", "first"):
            (Path(folder) / "mesh.secret").unlink()
    cluster.start_worker("first")
    with cluster.mesh() as mesh, mesh.sink(BACK) as sink:
        futures = put(mesh, BACK, [b"own"])
        assert taken(sink, 1) == [b"own"]
        assert ends(futures) == [None]
        streamed = mesh.submit(workload.stream, BACK, 5)
        assert taken(sink, 5) == numbers(0, 5)
        assert streamed.result(WAIT_S) == 5
        pump = mesh.submit(workload.doubled, THERE, BACK, 1)
        futures = put(mesh, THERE, [bytes(LARGE)])
        assert taken(sink, 1) == [bytes(2 * LARGE)]
        assert (ends(futures), pump.result(WAIT_S)) == ([None], 1)


@pytest.mark.smoke
def test_a_hub_that_dies_loses_no_value_and_each_comes_once(cluster: Cluster):
    cluster.start_hub()
    with Mesh(cluster.address, **OVERRIDES) as mesh, mesh.sink(THERE, credit="1KiB") as sink:
        futures = put(mesh, THERE, numbers(0, 500))
        values = taken(sink, 200)
        cluster.hub.kill()
        futures += put(mesh, THERE, numbers(500, 600))
        cluster.start_hub()

        def all_done() -> bool:
            with contextlib.suppress(TimeoutError):
                values.extend(taken(sink, 1, 0.05))
            return all(future.done() for future in futures)

        wait_until(all_done, WAIT_S)
        assert ends(futures) == [None] * 600
    assert values == numbers(0, 600)


def test_a_task_that_streams_outlives_its_hub(cluster: Cluster):
    """The task and its process go on: what the hub that died had comes to the next one from there."""
    cluster.start_hub()
    cluster.start_worker("one")
    with Mesh(cluster.address, **OVERRIDES) as mesh, mesh.sink(BACK, credit=1) as sink:
        future = mesh.submit(workload.stream, BACK, 50)
        values = taken(sink, 10)
        cluster.hub.kill()
        cluster.start_hub()
        values += taken(sink, 40)
        assert future.result(WAIT_S) == 50
    assert values == numbers(0, 50)


def test_what_a_consumer_that_is_killed_had_goes_to_another(cluster: Cluster, tmp_path: Path):
    cluster.start_hub()
    log = tmp_path / "consumer"
    line = ["-m", "tests.hosting.sink_consumer", cluster.address, str(log), "1KiB", "messages"]
    consumer = cluster.programs.launch("consumer", line)
    wait_until(lambda: "ready" in consumer.text(), WAIT_S)
    with Mesh(cluster.address, **OVERRIDES) as mesh:
        futures = put(mesh, "s", (b"%d" % number for number in range(20_000)))
        wait_until(futures[100].done, WAIT_S)
        consumer.kill()
        with mesh.sink("s") as sink:
            values: list[int] = []

            def all_done() -> bool:
                with contextlib.suppress(TimeoutError):
                    while True:
                        values.extend(map(int, taken(sink, 1, 0.05)))
                return all(future.done() for future in futures)

            wait_until(all_done, WAIT_S)
        assert ends(futures) == [None] * 20_000
    assert sorted({*values, *(entry.index for entry in Journal(log).entries())}) == list(range(20_000))


class TestSignatures:
    spec = Spec(b"", SINK_VALUE_NAME, kind=SINK_VALUE, sink=THERE)

    def signed(self, ring: Ring) -> tuple[PayloadSigner, bytes]:
        """Return a signer, and the payload of task 3 of client 7 as that client sends it."""
        signer = PayloadSigner(KeyFolder(ring.peer("client", "ann")).mesh_keys())
        number = spec_number(self.spec)
        submit = m.Submit(1, [(number, self.spec)], [Run(number, 0, [3], [b"value"])])
        return signer, signer.submit(submit, 7, lambda _: []).runs[0].payloads[0]

    def delivered(self, signer: PayloadSigner, payload: bytes, seq: int = 3) -> tuple[list[bytes], list[str]]:
        """Return the payloads, and the kinds of failures, that a consumer gets."""
        run = DoneRun(1, 7, 1, "p", [seq], [payload], 0.0)
        message = signer.sink_deliver(m.SinkDeliver(THERE, 1, 1, [run], [THERE]))
        return [one for run in message.done for one in run.payloads], [one.kind for one in message.failed]

    def test_a_value_is_verified_by_its_consumer(self, ring: Ring):
        assert self.delivered(*self.signed(ring)) == ([b"value"], [])

    @pytest.mark.parametrize("lie", ["unsigned", "empty", "changed", "another task's"])
    def test_a_hub_that_lies_is_found_out(self, ring: Ring, lie: str):
        signer, payload = self.signed(ring)
        made_up = {"unsigned": b"value", "empty": b"", "changed": payload[:-1] + b"?"}.get(lie, payload)

        assert self.delivered(signer, made_up, 4 if lie == "another task's" else 3) == ([], ["signature"])

    @pytest.mark.parametrize("spec", [spec, Spec(b"f", "f")], ids=["value", "function"])
    def test_a_value_is_no_task(self, ring: Ring, spec: Spec):
        signer, payload = self.signed(ring)
        number = spec_number(spec)
        run = LaneRun(number, 7, 1, 0, [3], [payload])

        (run,) = signer.tasks(m.Tasks(1, 1, 1, 0, 0.0, [(number, spec)], [run])).runs

        assert run.spec != number, "it is replaced by a task that raises"
