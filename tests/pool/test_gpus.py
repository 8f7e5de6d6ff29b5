"""Each slot sees its own GPUs and no others: with a driver that a test plays, and in real slots."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from taskmesh import Mesh, gather
from taskmesh.core.events import SlotExited
from taskmesh.errors import ConfigError
from taskmesh.pool.gpus import LOOK, PATIENCE, VISIBLE, GpuExits, capacity, chosen, devices
from taskmesh.system.nvml import NoGpus, Nvml
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.pool.early_gpus import seen

WAIT_S = 60
GPUS = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
EARLY = "tests.pool.early_gpus"


class Driver:
    """NVML as its library has it, with the processes that a test says."""

    def __init__(self, uuids: Sequence[str] = GPUS, status: int = 0) -> None:
        self.running: dict[str, list[int]] = {}
        self._uuids = list(uuids)
        self._status = status

    def __call__(self) -> Nvml:
        return Nvml(self)

    def nvmlInit_v2(self) -> int:  # noqa: N802  NVML's names
        return self._status

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self._uuids)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:  # noqa: N802
        device._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> int:  # noqa: N802
        device._obj.value = self._uuids.index(uuid.value.decode()) + 1
        return 0

    def nvmlDeviceGetUUID(self, device: Any, text: Any, size: Any) -> int:  # noqa: N802
        text.value = self._uuids[device.value - 1].encode()
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, found: Any) -> int:  # noqa: N802
        pids = self.running.get(self._uuids[device.value - 1], [])
        for place, pid in enumerate(pids):
            found[place].pid = pid
        count._obj.value = len(pids)
        return 0


def missing() -> Nvml:
    raise NoGpus("no driver")


@pytest.mark.parametrize(
    ("text", "inherited", "found"),
    [
        ("all", None, GPUS),
        ("1,3", None, ["GPU-b", "GPU-d"]),
        ("3, 1, 3", None, ["GPU-d", "GPU-b"]),
        ("GPU-x", None, ["GPU-x"]),
        ("all", "2,GPU-a", ["GPU-c", "GPU-a"]),
        ("2", "2,GPU-a", ["GPU-c"]),
        ("all", "MIG-1", ["MIG-1"]),
    ],
)
def test_gpus_are_told_by_their_uuids(text, inherited, found):
    environ = {} if inherited is None else {VISIBLE: inherited}

    assert chosen(text, environ, Driver()) == found


@pytest.mark.parametrize(
    ("text", "inherited", "reason"),
    [
        ("0", "2,3", "CUDA_VISIBLE_DEVICES=2,3 does not have GPU-a"),
        ("all", "", "there is no GPU"),
        ("all", "-1", "there is no GPU"),
        ("GPU-b", "GPU-a", "does not have GPU-b"),
        ("4", None, "there is no GPU 4: the driver has 4"),
    ],
)
def test_a_pool_never_has_more_than_its_process(text, inherited, reason):
    environ = {} if inherited is None else {VISIBLE: inherited}

    with pytest.raises(ConfigError, match=reason):
        chosen(text, environ, Driver())


def test_numbers_need_the_driver_and_uuids_do_not():
    assert chosen("GPU-a,GPU-b", {}, missing) == ["GPU-a", "GPU-b"]
    for text in ("all", "0"):
        with pytest.raises(ConfigError, match="no driver"):
            chosen(text, {}, missing)
    with pytest.raises(ConfigError, match="nvmlInit_v2 of NVIDIA's driver has failed with 9"):
        chosen("all", {}, Driver(status=9))


@pytest.mark.parametrize(
    ("each", "slots", "seen"),
    [
        (1, 2, ["GPU-a", "GPU-b"]),
        (1, 5, [*GPUS, ""]),
        (2, 2, ["GPU-a,GPU-b", "GPU-c,GPU-d"]),
        (3, 2, ["GPU-a,GPU-b,GPU-c", ""]),
        (0.5, 8, [*GPUS, *GPUS]),
        (0.25, 3, ["GPU-a", "GPU-b", "GPU-c"]),
    ],
)
def test_each_slot_sees_its_share(each, slots, seen):
    assert devices(GPUS, each, slots) == seen


@pytest.mark.parametrize(("each", "slots"), [(1, 4), (2, 2), (3, 1), (0.5, 8), (0.33, 12)])
def test_there_are_as_many_slots_as_gpus_for_them(each, slots):
    assert capacity(GPUS, each) == slots


@pytest.mark.parametrize("each", [0, -1, 1.5, 0.4, 5])
def test_shares_that_cannot_be_are_refused(each):
    with pytest.raises(ConfigError, match="--gpus-per-slot"):
        capacity(GPUS, each)


class Exits:
    """The ends of slots 0 and 1, which see GPU-a and GPU-b."""

    def __init__(self, load: Callable[[], Nvml]) -> None:
        self.told: list[int] = []
        self.exits = GpuExits(["GPU-a", "GPU-b"], self._tell, load)

    def _tell(self, event: SlotExited) -> None:
        self.told.append(event.slot)

    def exited(self, slot: int, pid: int) -> None:
        self.exits.exited(SlotExited(slot, 0, -9), pid, 10.0)


def test_a_slot_has_ended_when_its_process_is_off_its_gpu():
    driver = Driver()
    driver.running = {"GPU-a": [70], "GPU-b": [71]}
    exits = Exits(driver)

    exits.exited(0, 70)
    exits.exited(1, 70)
    assert exits.told == [1]
    assert exits.exits.deadline == 10.0 + LOOK
    driver.running["GPU-a"].clear()
    exits.exits.turn(10.1)
    assert exits.told == [1, 0]


def test_a_process_that_stays_on_its_gpu_is_not_waited_for_for_ever():
    driver = Driver()
    driver.running = {"GPU-a": [70]}
    exits = Exits(driver)

    exits.exited(0, 70)
    exits.exits.turn(10.0 + PATIENCE - 0.1)
    assert exits.told == []
    exits.exits.turn(10.0 + PATIENCE)
    assert exits.told == [0]


@pytest.mark.parametrize("load", [missing, Driver(uuids=["GPU-a"])])
def test_ends_are_told_at_once_if_nobody_knows(load):
    exits = Exits(load)
    exits.exited(0, 0)
    exits.exited(0, 70)

    assert exits.told == [0, 0]


def views(mesh: Mesh, slots: int) -> dict[int, tuple[int, str | None]]:
    """Return process and GPUs of every slot."""
    found: dict[int, tuple[int, str | None]] = {}

    def look() -> bool:
        for slot, pid, variable in gather([mesh.submit(seen) for _ in range(2 * slots)]):
            found[slot] = pid, variable
        return len(found) == slots

    wait_until(look, WAIT_S)
    return found


def test_slots_see_their_gpus_before_any_import_and_keep_them_after_a_crash(tmp_path: Path):
    programs = Programs(tmp_path)
    try:
        address = programs.hub()[1]
        line = ("worker", "--address", address, "--json", "--gpus", "GPU-a,GPU-b", "--gpus-per-slot", "0.5")
        worker = programs.start(*line, EARLY, env={VISIBLE: "GPU-a,GPU-b,GPU-c"})
        assert worker.ready()["slots"] == 4
        with Mesh(address) as mesh:
            before = views(mesh, 4)
            assert [variable for _, (_, variable) in sorted(before.items())] == ["GPU-a", "GPU-b"] * 2
            os.kill(before[1][0], signal.SIGKILL)
            after = views(mesh, 4)
            wait_until(lambda: after.update(views(mesh, 4)) or after[1][0] != before[1][0], WAIT_S)
            assert after[1][1] == "GPU-b"
    finally:
        programs.end()


def test_recycled_slots_keep_their_numbers_and_gpus(mesh_of):
    with mesh_of(2, gpus=("GPU-a", ""), max_tasks=3) as mesh:
        found = gather([mesh.submit(seen) for _ in range(30)])

    assert {(slot, variable) for slot, _, variable in found} == {(0, "GPU-a"), (1, "")}
    assert len({pid for _, pid, _ in found}) >= 10


def test_a_slot_whose_gpus_were_not_asked_for_sees_what_the_program_sees(mesh_of, monkeypatch):
    monkeypatch.setenv(VISIBLE, "GPU-z")
    with mesh_of(1) as mesh:
        assert mesh.submit(seen).result(WAIT_S)[2] == "GPU-z"
