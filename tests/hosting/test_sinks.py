"""Sinks with real processes: consumers that share, die, freeze or are not there; hubs that die."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from taskmesh import Mesh, TaskFuture
from taskmesh.errors import ConfigError, MeshClosed, RemoteError, SerializationError
from tests.harness.cluster import ENVIRONMENT, OVERRIDES, Cluster
from tests.harness.gate import Gate
from tests.harness.journal import Journal
from tests.harness.keys import Ring
from tests.harness.program import Program
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

WAIT_S = 30


def submit(mesh: Mesh, indexes: range, *, size: int = 0) -> list[TaskFuture[object]]:
    """Submit tasks that return their numbers, or so many bytes, to sink `s`."""
    surface = mesh.with_options(sink="s")
    if size:
        return [surface.submit(workload.zeros, size) for _ in indexes]
    return [surface.submit(workload.add, index, 0) for index in indexes]


def got(path: Path) -> list[int]:
    return [entry.index for entry in Journal(path).entries()]


@pytest.fixture(params=["embedded", "hub", "inline"])
def mesh(request: pytest.FixtureRequest, programs: Programs):
    if request.param != "hub":
        with Mesh(workers=2) if request.param == "embedded" else Mesh.inline(workers=2) as mesh:
            yield mesh
        return
    address = programs.hub()[1]
    programs.worker(address, slots=2)
    with Mesh(address) as mesh:
        yield mesh


def test_a_loop_takes_and_acknowledges(mesh: Mesh):
    futures = submit(mesh, range(50))
    with mesh.sink("s") as sink:
        values = set()
        for outcome in sink:
            values.add(outcome.result())
            assert outcome.state == "succeeded"
            assert outcome.name == "tests.hosting.workload.add"
            if len(values) == 50:
                sink.ack(outcome)
                break

    assert values == set(range(50))
    assert [future.result(WAIT_S) for future in futures] == [None] * 50
    assert mesh.status()["sinks"] == []


def test_what_the_loop_has_not_acknowledged_when_it_is_left_comes_again(mesh: Mesh):
    (future,) = submit(mesh, range(7, 8))
    with mesh.sink("s") as sink:
        assert next(iter(sink)).result() == 7
    assert not future.done()

    with mesh.sink("s", ack="manual") as sink:
        again = sink.get(WAIT_S)
        assert again.result() == 7
        sink.ack(again)
        sink.ack(again)
        assert future.result(WAIT_S) is None
        with pytest.raises(TimeoutError):
            sink.get(0.05)
    with pytest.raises(MeshClosed):
        sink.get(1)


def test_errors_come_as_outcomes_and_to_the_future(mesh: Mesh):
    future = mesh.with_options(sink="s").submit(workload.refuse, "no")
    with mesh.sink("s") as sink:
        outcome = sink.get(WAIT_S)
        assert outcome.state == "failed"
        with pytest.raises(workload.Refusal, match="no"):
            outcome.result()
        sink.ack(outcome)
        assert isinstance(future.exception(WAIT_S), workload.Refusal)


def test_a_map_s_items_go_there_one_by_one(mesh: Mesh):
    with mesh.sink("s") as sink:
        results = mesh.with_options(sink="s").map(workload.add, range(20), range(20))
        taken = threading.Thread(target=take, args=(sink, 20, values := []))
        taken.start()
        assert list(results) == [None] * 20
        taken.join()
    assert sorted(values) == list(range(0, 40, 2))


def take(sink, count: int, values: list[object]) -> None:
    for _ in range(count):
        outcome = sink.get(WAIT_S)
        values.append(outcome.result())
        sink.ack(outcome)


def test_large_results_go_there_as_they_are(mesh: Mesh):
    (future,) = submit(mesh, range(1), size=5_000_000)
    with mesh.sink("s") as sink:
        outcome = sink.get(WAIT_S)
        assert outcome.result() == bytes(5_000_000)
        sink.ack(outcome)
    assert future.result(WAIT_S) is None


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": ""}, "name"),
        ({"name": "s", "credit": "much"}, "credit="),
        ({"name": "s", "credit": 0}, "credit="),
        ({"name": "s", "ack": "sometimes"}, 'ack= is "auto" or "manual"'),
    ],
)
def test_nonsense_is_refused(arguments: dict, error: str):
    mesh = Mesh(workers=1)
    with pytest.raises(ConfigError, match=error):
        mesh.sink(**arguments)
    for option in {"key": "k"}, {"keep": 10.0}, {"ignore_result": True}:
        with pytest.raises(ConfigError, match="choose one"):
            mesh.with_options(sink="s", **option).submit(workload.add, 1, 2)


def test_its_result_is_no_argument_but_its_end_can_be_waited_for(mesh: Mesh):
    (future,) = submit(mesh, range(1))
    with pytest.raises(ConfigError, match="wait for it with after="):
        mesh.submit(workload.echo, future)
    after = mesh.with_options(after=future).submit(workload.add, 1, 2)
    with mesh.sink("s") as sink:
        sink.ack(sink.get(WAIT_S))
    assert after.result(WAIT_S) == 3


def test_one_mesh_takes_from_a_sink_once(mesh: Mesh):
    with mesh.sink("s"), pytest.raises(ConfigError, match="already"):
        mesh.sink("s").__enter__()


def test_a_program_takes_from_so_many_sinks(mesh: Mesh, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskmesh.messages.mesh_messages.MOST_SINKS", 1)

    with mesh.sink("s"), pytest.raises(ConfigError, match="takes from 1 sinks already"):
        mesh.sink("t").__enter__()


# --- consumers as processes -------------------------------------------------------------------------------


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


class Consumers:
    """Consumers as processes, and what each has written down."""

    def __init__(self, programs: Programs, address: str, folder: Path) -> None:
        self.programs, self.address, self.folder = programs, address, folder
        self.logs: list[Path] = []

    def start(self, credit: str = "2KiB") -> Program:
        self.logs.append(self.folder / f"consumer-{len(self.logs)}")
        line = ["-m", "tests.hosting.sink_consumer", self.address, str(self.logs[-1]), credit]
        program = self.programs.launch("consumer", line)
        wait_until(lambda: "ready" in program.text(), WAIT_S)
        return program

    def seen(self) -> Counter[int]:
        return Counter(index for log in self.logs for index in got(log))


@pytest.mark.smoke
def test_three_consumers_one_killed_one_frozen(programs: Programs, tmp_path: Path):
    """Each outcome is seen at least once, and only what they had not acknowledged twice."""
    cluster = Cluster(Programs(made(tmp_path / "mesh"), ENVIRONMENT))
    cluster.start_hub()
    cluster.start_worker("one")
    consumers = Consumers(programs, cluster.address, tmp_path)
    killed, frozen, _ = (consumers.start() for _ in range(3))
    try:
        with Mesh(cluster.address, **OVERRIDES) as mesh:
            futures = submit(mesh, range(3000))
            wait_until(lambda: all(len(got(log)) > 100 for log in consumers.logs), WAIT_S)
            frozen.stop()
            killed.kill()
            assert [future.result(WAIT_S) for future in futures] == [None] * 3000
            frozen.go_on()
            (last,) = submit(mesh, range(3000, 3001))
            assert last.result(WAIT_S) is None
        seen = consumers.seen()
        assert set(seen) == set(range(3001))
        twice = {index for index, count in seen.items() if count > 1}
        assert twice <= {*got(consumers.logs[0]), *got(consumers.logs[1])}
        assert len(twice) < 200, "no more than they could have unacknowledged"
        assert len(got(consumers.logs[2])) > 500, "they share"
    finally:
        cluster.programs.close()


@pytest.mark.smoke
def test_a_hub_that_dies_loses_nothing_that_was_not_acknowledged(programs: Programs, tmp_path: Path):
    cluster = Cluster(Programs(made(tmp_path / "mesh"), ENVIRONMENT))
    try:
        cluster.start_hub()
        cluster.start_worker("one")
        with Mesh(cluster.address, **OVERRIDES) as mesh, mesh.sink("s", credit="1KiB") as sink:
            futures = submit(mesh, range(500))
            values: list[object] = []
            take(sink, 200, values)
            cluster.hub.kill()
            cluster.start_hub()

            def all_done() -> bool:
                with contextlib.suppress(TimeoutError):
                    outcome = sink.get(0.05)
                    values.append(outcome.result())
                    sink.ack(outcome)
                return all(future.done() for future in futures)

            wait_until(all_done, WAIT_S)
            assert [future.result(WAIT_S) for future in futures] == [None] * 500
        assert set(values) == set(range(500))
    finally:
        cluster.programs.close()


FROZEN = """
import sys
from taskmesh import Mesh
from tests.harness.gate import wait_at
from tests.harness.journal import Journal
with Mesh(sys.argv[1], hub__lease=2.0) as mesh, mesh.sink("s", ack="manual") as sink:
    log = Journal(sys.argv[2])
    sink.ack(sink.get(30))
    log.write("ready", 0)
    wait_at(sys.argv[3])
    while True:
        try:
            log.write("got", sink.get(3).result())
        except TimeoutError:
            break
"""


@pytest.mark.smoke
def test_a_consumer_that_was_frozen_gives_out_nothing_that_others_have_acknowledged(
    programs: Programs, tmp_path: Path, gates: Callable[[], Gate]
):
    cluster = Cluster(Programs(made(tmp_path / "mesh"), ENVIRONMENT))
    log, gate = Journal(tmp_path / "log"), gates()
    try:
        cluster.start_hub()
        cluster.start_worker("one")
        with Mesh(cluster.address, **OVERRIDES) as mesh:
            frozen = programs.launch("frozen", ("-c", FROZEN, cluster.address, str(log.path), gate.path))
            futures = submit(mesh, range(300))
            wait_until(lambda: log.count("ready"), WAIT_S)
            wait_until(
                lambda: mesh.status()["sinks"][0]["unacknowledged"] == 299, WAIT_S, "it has all in hand"
            )
            frozen.stop()
            gate.open()
            values: list[object] = []
            with mesh.sink("s") as sink:
                take(sink, 299, values)
            wait_until(lambda: all(future.done() for future in futures), WAIT_S)
            frozen.go_on()
            assert frozen.wait(WAIT_S) == 0
        assert got(tmp_path / "log") == [0]
    finally:
        cluster.programs.close()


def test_with_keys_outcomes_are_verified(programs: Programs, ring: Ring):
    keyed = Cluster.keyed(programs, ring)
    with keyed.mesh() as mesh, mesh.sink("s") as sink:
        futures = submit(mesh, range(20))
        values: list[object] = []
        take(sink, 20, values)
        assert sorted(values) == list(range(20))
        assert [future.result(WAIT_S) for future in futures] == [None] * 20


def test_with_keys_a_sink_is_its_user_s_unless_its_name_says_that_it_is_shared(
    programs: Programs, ring: Ring
):
    keyed = Cluster.keyed(programs, ring)
    with keyed.mesh() as mesh, keyed.mesh(ring.peer("client", "bob")) as other:
        with other.sink("shared:s") as shared, other.sink("s") as another_s, mesh.sink("s") as own:
            mesh.with_options(sink="shared:s").submit(workload.echo, 1)
            mesh.with_options(sink="s").submit(workload.echo, 2)
            values: list[object] = []
            take(shared, 1, values)
            take(own, 1, values)
            with pytest.raises(TimeoutError):
                another_s.get(0.5)
        assert values == [1, 2]


def test_a_client_that_unpickles_nothing_takes_plain_data_whoever_made_it(programs: Programs):
    address = programs.hub()[1]
    programs.worker(address)
    with Mesh(address) as mesh, Mesh(address, result_codec="safe") as careful, careful.sink("s") as sink:
        submit(mesh, range(1))
        careful.with_options(sink="s").submit(workload.echo, [1])
        mesh.with_options(sink="s").submit(workload.echo, [2])
        refused = mesh.with_options(sink="s").submit(workload.refuse, "no")
        values: list[object] = []
        errors: list[BaseException] = []
        for _ in range(4):
            outcome = sink.get(WAIT_S)
            try:
                values.append(outcome.result())
            except (SerializationError, RemoteError) as error:
                errors.append(error)
            sink.ack(outcome)
        assert isinstance(refused.exception(WAIT_S), workload.Refusal)
    assert sorted(values, key=str) == [0, [1]]
    assert sorted(map(type, errors), key=str) == [RemoteError, SerializationError]
    assert any("result_codec" in str(error) for error in errors)
