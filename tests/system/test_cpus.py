"""How many CPUs a process may keep busy, and how many slots a pool has by default."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskmesh.config import PoolConfig
from taskmesh.system import cgroups
from tests.harness.requirement import require
from tests.pool.slots.cgroup import group_of, is_available


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
    monkeypatch.setattr(cgroups, "_GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(cgroups, "_MOUNT", str(mount))

    assert cgroups.usable_cpus() == min(expected, len(os.sched_getaffinity(0)))


@pytest.mark.fault
def test_the_quota_of_a_real_control_group_is_seen() -> None:
    require(is_available("cpu"), "a cpu cgroup that we may write to: run as root")
    asks = "from taskmesh.system.cgroups import usable_cpus; input(); print(usable_cpus())"
    with (
        group_of("cpu") as group,
        subprocess.Popen(
            [sys.executable, "-c", asks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        group.set_cpus(0.7)
        group.add(child.pid)
        assert child.communicate("go\n", timeout=50)[0] == "0.7\n"


@pytest.mark.parametrize(
    ("quota", "slots"), [("30000 100000", 1), ("150000 100000", 2), ("max 100000", math.inf)]
)
def test_a_pool_has_no_more_slots_than_its_quota_keeps_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, slots: float
) -> None:
    (tmp_path / "groups").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(cgroups, "_GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(cgroups, "_MOUNT", str(tmp_path))

    assert PoolConfig().slots == min(slots, len(os.sched_getaffinity(0)))
    assert PoolConfig(concurrency=7).slots == 7
