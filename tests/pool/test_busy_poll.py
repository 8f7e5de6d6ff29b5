"""When a slot stays awake between two tasks, and when it goes to sleep."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmesh.pool import busy_poll
from taskmesh.pool.busy_poll import COST, DISTRUST, HABIT, LONGEST, SHORT, TRUST, BusyPoll
from tests.pool.cgroup import group_of, is_available
from tests.requirement import require


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """What is waited for, and the other end of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def accustomed(fd: int, waits: int = HABIT) -> BusyPoll:
    """One that has seen so many short waits after lone tasks."""
    polling = BusyPoll(fd, cpus=2)
    for _ in range(waits):
        polling.waited(SHORT)
    return polling


def test_polls_once_lone_tasks_follow_each_other_quickly(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    polling = accustomed(ours.fileno(), HABIT - 1)
    assert not polling.pays
    polling.waited(SHORT)
    assert polling.pays
    theirs.send(b"a task")
    assert polling.wait()


def test_slow_waits_make_no_habit(ends: tuple[socket.socket, socket.socket]) -> None:
    polling = BusyPoll(ends[0].fileno(), cpus=2)
    for _ in range(10):
        polling.waited(SHORT)
        polling.waited(2 * SHORT)
        assert not polling.pays


def test_a_single_cpu_is_left_to_those_who_answer(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    polling = BusyPoll(ours.fileno(), cpus=1)
    for _ in range(2 * TRUST):
        polling.waited(0.0)
    theirs.send(b"a task")
    assert not polling.pays
    assert not polling.wait()


def test_less_than_two_cpus_worth_of_time_is_left_to_the_tasks(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    polling = BusyPoll(ends[0].fileno(), cpus=1.5)
    for _ in range(2 * TRUST):
        polling.waited(0.0)
    assert not polling.pays


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/\n", {"/cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"/cpu.max": "max 100000"}, math.inf),
        ("0::/\n", {"/cpu.max": ""}, math.inf),
        ("0::/a/b\n", {"/a/b/cpu.max": "max 100000", "/a/cpu.max": "50000 100000"}, 0.5),
        ("0::/host/path\n", {"/cpu.max": "20000 10000"}, 2.0),
        (
            "1:cpu,cpuacct:/a\n",
            {"/cpu/a/cpu.cfs_quota_us": "-1", "/cpu/a/cpu.cfs_period_us": "100000"},
            math.inf,
        ),
        ("1:cpu:/a\n0::/\n", {"/cpu/a/cpu.cfs_quota_us": "30000", "/cpu/a/cpu.cfs_period_us": "100000"}, 0.3),
        ("1:cpuset:/a\n", {"/cpuset/a/cpu.max": "1000 100000"}, math.inf),
    ],
)
def test_quotas_of_control_groups_above_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], expected: float
) -> None:
    mount = tmp_path / "mount"
    (tmp_path / "groups").write_text(groups)
    for name, content in files.items():
        (mount / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (mount / name[1:]).write_text(f"{content}\n")
    monkeypatch.setattr(busy_poll, "_OWN", str(tmp_path / "groups"))
    monkeypatch.setattr(busy_poll, "_V1", f"{mount}/cpu")
    monkeypatch.setattr(busy_poll, "_V2", str(mount))

    assert busy_poll.usable_cpus() == min(expected, len(os.sched_getaffinity(0)))


@pytest.mark.fault
def test_the_quota_of_a_real_control_group_is_seen() -> None:
    require(is_available("cpu"), "a cpu cgroup that we may write to: run as root")
    asks = "from taskmesh.pool.busy_poll import usable_cpus; input(); print(usable_cpus())"
    with (
        group_of("cpu") as group,
        subprocess.Popen(
            [sys.executable, "-c", asks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        group.set_cpus(0.7)
        group.add(child.pid)
        assert child.communicate("go\n", timeout=50)[0] == "0.7\n"


def test_polling_in_vain_uses_trust_up(ends: tuple[socket.socket, socket.socket]) -> None:
    polling = accustomed(ends[0].fileno(), 2 * TRUST)
    vain = 0
    while polling.pays:
        assert not polling.wait()
        vain += 1
    assert vain == TRUST // COST + 1
    for _ in range(DISTRUST - 1):
        polling.waited(SHORT)
        assert not polling.pays
    polling.waited(SHORT)
    assert polling.pays


def test_a_miss_now_and_then_is_forgiven(ends: tuple[socket.socket, socket.socket]) -> None:
    polling = accustomed(ends[0].fileno(), 2 * TRUST)
    for _ in range(10):
        assert not polling.wait()
        for _ in range(COST):
            polling.waited(LONGEST)
            assert polling.pays
