"""Slots that run as another user than their worker: they cannot read its keys."""

import os
import pwd
import sys
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.config import load
from taskmesh.errors import ConfigError
from taskmesh.pool.settings import check_slot_user, pool_settings
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.programs import Programs

OTHER = "nobody"


def others_may_run_python() -> bool:
    """True if another user reaches this interpreter and this checkout."""
    used = [Path(path) for path in (sys.executable, sys.prefix, os.__file__, __file__)]
    folders = {folder for path in used for folder in (*path.parents, *path.resolve().parents)}
    return all(folder.stat().st_mode & 0o001 for folder in folders)


def look(*paths: str) -> tuple[int, list[str]]:
    """Return the id of this process's user, and what becomes of opening these files."""
    told = []
    for path in (*paths, f"/proc/{os.getppid()}/environ", "/proc/self/environ"):
        try:
            Path(path).read_bytes()
            told.append("read")
        except OSError as error:
            told.append(type(error).__name__)
    return os.getuid(), told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run slots as another user")
@pytest.mark.skipif(not others_may_run_python(), reason="other users cannot run this interpreter")
def test_a_task_cannot_read_the_keys_of_a_worker_whose_slots_are_another_user_s(
    programs: Programs, ring: Ring
):
    cluster = Cluster(programs, ring)
    cluster.start_hub()
    cluster.start_worker("guarded", "--slot-user", OTHER)
    keys = Path(cluster.keys("worker", "guarded"))
    with cluster.mesh() as mesh:
        user, told = mesh.submit(look, *map(str, (keys / "worker.secret", keys / "mesh.secret"))).result(20)

    assert user == pwd.getpwnam(OTHER).pw_uid
    assert told == [*["PermissionError"] * 3, "read"]


def test_who_is_not_root_is_told_that_the_slots_could_read_the_keys(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(ConfigError, match="the worker's keys too: start it as root"):
        check_slot_user(OTHER)


def test_a_user_whom_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)

    with pytest.raises(ConfigError, match="no user 'nosuch'"):
        check_slot_user("nosuch")


def test_slots_beside_their_hub_are_its_own_user_s():
    with pytest.raises(ConfigError, match="is for `taskmesh worker`"):
        pool_settings(load({"pool": {"slot_user": OTHER}}, environ={}))
    with (
        pytest.raises(ConfigError, match="is for `taskmesh worker`"),
        Mesh(workers=1, slot_user=OTHER) as mesh,
    ):
        mesh.submit(look).result(20)
