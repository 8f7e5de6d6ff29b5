"""Hub and pools as processes 1 of containers, restricted as the chart restricts them."""

import threading
from typing import Any

import pytest

from tests.containers.box import Containers, podman
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Call(threading.Thread):
    """A `taskmesh submit` under way."""

    def __init__(self, containers: Containers, container: str, *call: str) -> None:
        super().__init__(daemon=True)
        self._call = (containers, container, *call)
        self.outcome: dict[str, Any] = {}
        self.start()

    def run(self) -> None:
        containers, container, *call = self._call
        self.outcome = containers.call(container, *call)

    def ended(self) -> dict[str, Any]:
        self.join(60)
        assert not self.is_alive()
        return self.outcome


def begun(container: str) -> bool:
    return podman("exec", container, "test", "-e", "/scratch/begun", check=False).returncode == 0


def test_a_task_runs_without_root_capabilities_or_a_writable_root(containers):
    hub = containers.hub()
    containers.worker("one", "boxed")

    outcome = containers.call(hub, "surroundings")

    assert outcome["result"] == {
        "uid": 10001,
        "capabilities": 0,
        "no new privileges": "1",
        "seccomp": "2",
        "writable": ["/scratch"],
        "cwd": "/tasks",
    }
    assert outcome["worker"].startswith("one")


@pytest.mark.fault
def test_a_busy_pool_that_is_stopped_finishes_its_task(containers):
    hub, worker = containers.hub(), containers.worker("one", "--grace", "20")
    call = Call(containers, hub, "nap", "3")
    wait_until(lambda: begun(worker), 20)

    podman("stop", "--time=20", worker)

    assert call.ended()["result"] == "slept"
    assert call.outcome["attempt"] == 1
    assert containers.exit_code(worker) == 0


@pytest.mark.fault
def test_a_task_beyond_the_memory_limit_is_blamed_and_the_pool_lives_on(containers):
    hub = containers.hub()
    containers.worker("one", options=("--memory=200m", "--memory-swap=200m"))

    outcome = containers.call(hub, "grab", "400")

    assert outcome["error"]["type"] == "WorkerCrashed"
    assert "for lack of memory" in outcome["error"]["message"]
    assert containers.call(hub, "double", "21")["result"] == 42
