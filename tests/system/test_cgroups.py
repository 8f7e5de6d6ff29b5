"""How much memory a process may take, by the control groups that it is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskmesh.system import cgroups

MACHINE = 8 << 30


def pretend(
    folder: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], more: str
) -> None:
    """Lets this process see these control groups, and a machine with MACHINE bytes and one `more` figure."""
    (folder / "groups").write_text(groups)
    (folder / "machine").write_text(f"MemTotal: {MACHINE >> 10} kB\n{more}\n")
    for name, content in files.items():
        (folder / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (folder / name[1:]).write_text(f"{content}\n")
    monkeypatch.setattr(cgroups, "_GROUPS", str(folder / "groups"))
    monkeypatch.setattr(cgroups, "_MACHINE", str(folder / "machine"))
    monkeypatch.setattr(cgroups, "_MOUNT", str(folder))


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, MACHINE),
        ("0::/\n", {"/memory.max": "1048576"}, 1 << 20),
        ("0::/\n", {"/memory.max": "max"}, MACHINE),
        ("0::/a/b\n", {"/a/b/memory.max": "max", "/a/memory.max": "4096"}, 4096),
        ("0::/host/path\n", {"/memory.max": "8192"}, 8192),
        ("4:memory:/a\n0::/\n", {"/memory/a/memory.limit_in_bytes": "4096"}, 4096),
        ("4:memory:/a/b\n", {"/memory/a/memory.limit_in_bytes": "4096"}, 4096),
        ("4:memory:/\n", {"/memory/memory.limit_in_bytes": str(2**63 - 4096)}, MACHINE),
        ("4:cpu:/a\n", {"/cpu/a/memory.limit_in_bytes": "4096"}, MACHINE),
    ],
)
def test_the_least_limit_of_memory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], expected: int
) -> None:
    pretend(tmp_path, monkeypatch, groups, files, "MemFree: 1 kB")

    assert cgroups.memory_limit() == expected


V1 = "4:memory:/a\n0::/\n"
V1_FILES = {
    "/memory/a/memory.limit_in_bytes": "1000",
    "/memory/a/memory.usage_in_bytes": "900",
    "/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 50",
}
V2_FILES = {
    "/a/b/memory.max": "1000",
    "/a/b/memory.current": "900",
    "/a/b/memory.stat": "anon 550\ninactive_file 300\nactive_file 50",
}
SWAP_FILES = {"/a/b/memory.swap.max": "max", "/a/b/memory.swap.current": "0"}


@pytest.mark.parametrize(
    ("groups", "files", "swap", "expected"),
    [
        (V1, V1_FILES, 0, (450, 1000)),
        ("0::/a/b\n", V2_FILES, 0, (450, 1000)),
        ("0::/a/b\n", V2_FILES | {"/a/b/memory.current": "799"}, 0, (201, 1000)),  # near enough: far from it
        ("0::/a/b\n", V2_FILES | {"/a/memory.max": "3000", "/a/memory.current": "2900"}, 0, (100, 3000)),
        ("0::/a/b\n", V2_FILES | SWAP_FILES, 2048, (2498, 1000)),
        ("0::/a/b\n", V2_FILES | SWAP_FILES | {"/a/b/memory.swap.max": "0"}, 2048, (450, 1000)),
        ("0::/a/b\n", V2_FILES | SWAP_FILES | {"/a/b/memory.swap.max": "70"}, 2048, (520, 1000)),
        ("0::/a/b\n", {"/a/b/memory.max": "max"}, 0, None),
        ("0::/a/b\n", {"/a/b/memory.max": str(2 * MACHINE)}, 0, None),
        ("", {}, 0, None),
    ],
)
def test_what_is_left_of_the_tightest_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    files: dict[str, str],
    swap: int,
    expected: tuple[int, int] | None,
) -> None:
    """Cached files do not count, nor does a limit above the machine's memory."""
    pretend(tmp_path, monkeypatch, groups, files, f"SwapFree: {swap >> 10} kB")

    memory = cgroups.LimitedMemory()

    assert (memory.least_left() if memory else None) == expected


def test_a_kill_explains_a_death_that_comes_after_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill that no slot dies of is forgotten in the end: it was of another process."""
    now = 100.0
    monkeypatch.setattr(cgroups, "monotonic", lambda: now)
    pretend(tmp_path, monkeypatch, "0::/a\n", {"/a/memory.events": "oom_kill 3"}, "MemFree: 1 kB")
    counter = cgroups.OomCounter()
    assert not counter.explains(1)

    (tmp_path / "a" / "memory.events").write_text("oom_kill 5\n")
    counter.refresh()
    now += cgroups.LONGEST_DEATH / 2
    counter.refresh()
    assert counter.explains(1)
    now += cgroups.LONGEST_DEATH
    counter.refresh()
    assert not counter.explains(1)
