"""Limits with real processes, in short; the long version is a soak."""

import json
import time
from collections.abc import Iterator

import pytest

from taskmesh import Limit, Mesh, gather, task
from taskmesh.errors import ConfigError
from tests.harness.cluster import ENVIRONMENT, Cluster
from tests.harness.programs import Programs
from tests.harness.spans import most_at_a_time, most_in
from tests.harness.waiting import wait_until
from tests.hosting import workload

pytestmark = pytest.mark.usefixtures("processes")
END_S = 55


@pytest.fixture(params=["embedded", "tcp"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """A mesh of four slots that have imported what they run."""
    if request.param == "embedded":
        with Mesh(workers=4) as mesh:
            gather([mesh.submit(workload.span, 0.1) for _ in range(8)], timeout=END_S)
            yield mesh
        return
    cluster = Cluster(request.getfixturevalue("programs"))
    cluster.start_hub(env=ENVIRONMENT)
    cluster.start_worker("first", slots=4)
    with cluster.mesh() as mesh:
        gather([mesh.submit(workload.span, 0.1) for _ in range(8)], timeout=END_S)
        yield mesh


def test_a_rate_is_kept_and_used(mesh: Mesh):
    stamps = mesh.with_options(limit="api:50/s")
    futures = [stamps.submit(workload.stamp) for _ in range(200)]
    times = gather(futures, timeout=END_S)

    assert most_in(times, 1.0) <= 51 + 3  # a slot may begin a little late, and what comes then on time
    assert max(times) - min(times) <= 3.0 / 0.9 + 0.1  # benchmarks/ measures it on a quiet machine


@pytest.mark.soak
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("rate", "seconds"), [("50/s", 1.0), ("600/m", 60.0), ("1000/s", 1.0)])
def test_a_minute(mesh: Mesh, rate: str, seconds: float):
    count = int(rate.partition("/")[0])
    whole = int(60 * count / seconds)
    limited = mesh.with_options(limit=f"api:{rate}")
    futures = [limited.submit(workload.stamp) for _ in range(whole + 2 * count)]
    end = time.monotonic() + 60.0
    wait_until(lambda: time.monotonic() > end, 70.0)
    times = [future.result(0) for future in futures if future.done()]
    for future in futures:
        future.cancel()

    assert most_in(times, seconds) <= count + max(1, count // 50)
    until = min(times) + 60.0
    assert 0.97 * whole <= sum(when < until for when in times) <= whole + count // 50 + 1


def test_several_limits_at_once(mesh: Mesh):
    limits = ["api:100/s", "gpu:3", Limit("user", concurrency=1, by=lambda seconds, user: user)]
    calls = mesh.with_options(limit=limits)
    futures = [calls.submit(workload.span, 0.01, f"user-{x % 3}") for x in range(150)]
    spans = gather(futures, timeout=END_S)

    assert most_at_a_time(spans) <= 3
    for user in range(3):
        assert most_at_a_time(spans[user::3]) == 1


def test_what_is_no_limit():
    for limit in ("api", "api:fast", Limit, ["gpu:1", "gpu:2"], 5):
        with pytest.raises(ConfigError):
            task(limit=limit)(workload.echo)
    for arguments in ({}, {"rate": "5/s", "concurrency": 1}, {"rate": "5"}, {"concurrency": 0}):
        with pytest.raises(ConfigError):
            Limit("x", **arguments)
    for by in (lambda user: None, lambda user: ""):
        with Mesh(workers=1) as mesh, pytest.raises(ConfigError, match="by="):
            mesh.with_options(limit=Limit("x", concurrency=1, by=by)).submit(workload.echo, 1)


@pytest.mark.smoke
def test_permits_come_back_when_pools_and_hubs_die(programs: Programs):
    cluster = Cluster(programs)
    cluster.start_hub(env=ENVIRONMENT)
    cluster.start_worker("first", slots=2)
    with cluster.mesh() as mesh:
        limited = mesh.with_options(limit=["gpu:2", "api:40/s"])
        futures = [limited.submit(workload.span, 0.05) for _ in range(60)]
        futures[5].result(END_S)
        cluster.pools["first"].kill()
        cluster.start_worker("second", slots=4)
        futures[25].result(END_S)
        cluster.hub.kill()
        cluster.start_hub(env=ENVIRONMENT)
        spans = gather(futures, timeout=END_S)

    assert most_at_a_time(spans) <= 2
    assert most_in([begin for begin, _ in spans], 1.0) <= 41


def test_operators_list_set_and_explain_limits(programs: Programs):
    cluster = Cluster(programs)
    cluster.start_hub(env=ENVIRONMENT)
    address = ("--address", cluster.address)
    with cluster.mesh() as mesh:
        limited = mesh.with_options(limit="api:1/h")
        first, *_, last = [limited.submit(workload.echo, x) for x in range(6)]
        mesh.flush(END_S)
        cluster.start_worker("first", slots=2)
        first.result(END_S)
        told = programs.run("explain", last.task_id, *address).stdout
        assert "limit api 1/h, 4 before it" in told
        rows = json.loads(programs.run("limits", "list", *address, "--json").stdout)
        assert [(row["limit"], row["rule"], row["waiting"]) for row in rows] == [("api", "1/h", 5)]
        programs.run("limits", "set", "api", "100/s", *address)
        assert last.result(END_S) == 5
        assert "api" in programs.run("limits", "list", *address).stdout
        told = programs.run("limits", "unset", "api", *address).stdout
        assert told == "limit api is 1/h\n"
        failed = programs.run("limits", "set", "api", "often", *address)
        assert failed.returncode == 1
        assert "is no limit" in failed.stderr
