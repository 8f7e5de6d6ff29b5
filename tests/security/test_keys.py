"""Directories of keys: what is made, what is refused, who is let in."""

import errno
import os
from pathlib import Path

import pytest

from taskmesh.errors import KeysUnusable
from taskmesh.security.key_files import KeysOutOfReach, keys_in
from taskmesh.security.keys import Admission, KeyFolder, listing
from taskmesh.sockets import InvalidOption, key_text, new_key_pair, pair_of, raw_key


@pytest.fixture
def hub(tmp_path: Path) -> KeyFolder:
    folder = KeyFolder(tmp_path / "hub")
    folder.new(["hub"])
    return folder


@pytest.fixture
def worker(tmp_path: Path, hub: KeyFolder) -> KeyFolder:
    folder = KeyFolder(tmp_path / "worker")
    folder.new(["worker"], hub.path / "hub.public")
    return folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_secrets_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    former = os.umask(0)
    try:
        folder = KeyFolder(tmp_path / "keys")
        folder.new(["hub", "client"])
    finally:
        os.umask(former)

    assert mode(folder.path) == 0o700
    assert mode(folder.path / "hub.secret") == mode(folder.path / "client.secret") == 0o600


def test_a_pair_belongs_together_and_the_hub_is_known(hub, worker):
    own = worker.own("worker")

    assert pair_of(own.secret) == own
    assert keys_in(worker.path / "worker.public") == (own.public,)
    assert worker.hub_keys() == (hub.own("hub").public,)
    assert own.secret.decode() not in repr(own)


def test_a_key_that_is_there_is_not_overwritten(hub):
    before = hub.own("hub")

    with pytest.raises(KeysUnusable, match="keys rotate hub"):
        hub.new(["hub"])

    assert hub.own("hub") == before


@pytest.mark.parametrize("loose", [0o644, 0o640, 0o604, 0o660])
def test_a_secret_that_others_may_read_is_refused_with_the_cure(worker, loose):
    (worker.path / "worker.secret").chmod(loose)

    with pytest.raises(KeysUnusable, match=r"others may read it .*chmod 600"):
        worker.own("worker")


@pytest.mark.parametrize("loose", [0o755, 0o750, 0o701])
def test_a_directory_that_others_may_look_into_is_refused_with_the_cure(worker, loose):
    worker.path.chmod(loose)

    with pytest.raises(KeysUnusable, match="chmod 700"):
        worker.own("worker")


def test_public_files_that_others_may_change_are_refused(hub, worker):
    (worker.path / "hub.public").chmod(0o666)
    (hub.path / "authorized" / "worker").chmod(0o777)

    with pytest.raises(KeysUnusable, match="chmod go-w"):
        worker.hub_keys()
    with pytest.raises(KeysUnusable, match="chmod go-w"):
        hub.admissions()


@pytest.fixture
def mounted(worker, monkeypatch):
    """Gives the worker's secret a mode, and root as an owner who lets us read it only."""
    file = worker.path / "worker.secret"
    monkeypatch.setattr(os, "access", lambda path, wanted: False)

    def mount(mode: int) -> None:
        facts = os.stat_result((0o100000 | mode, *file.stat()[1:4], 0, *file.stat()[5:]))
        monkeypatch.setattr(Path, "stat", lambda path, **how: facts if path == file else os.stat(path, **how))

    return mount


def test_a_secret_that_somebody_has_mounted_read_only_may_be_read_by_the_group(worker, mounted):
    mounted(0o440)

    assert worker.own("worker").public == keys_in(worker.path / "worker.public")[0]


def test_a_secret_in_a_volume_of_kubernetes_may_have_the_mode_that_kubernetes_gives_it(worker, mounted):
    """Spark's own settings mount a Secret with mode 0644, and its executors refused their keys."""
    mounted(0o644)
    with pytest.raises(KeysUnusable, match="others may read it"):
        worker.own("worker")  # a file of root's that all users of a machine can read

    (worker.path / "..data").symlink_to("..2026_11_26")

    assert worker.own("worker").public == keys_in(worker.path / "worker.public")[0]
    mounted(0o646)
    with pytest.raises(KeysUnusable, match="others may read it"):
        worker.own("worker")


def test_what_is_missing_is_named_with_the_command_that_makes_it(tmp_path, worker):
    with pytest.raises(KeysUnusable, match="taskmesh keys new"):
        KeyFolder(tmp_path / "nowhere").own("client")
    with pytest.raises(KeysUnusable, match="taskmesh keys new client"):
        worker.own("client")
    (worker.path / "hub.public").unlink()
    with pytest.raises(KeysUnusable, match=r"copy the file hub\.public"):
        worker.hub_keys()


@pytest.mark.parametrize("body", [b"", b"# nothing\n", b"short\n", b"\xff" * 40, b"a b" * 20, b"~" * 40])
def test_a_file_that_holds_no_key_is_refused(tmp_path, body):
    file = tmp_path / "some.public"
    file.write_bytes(body)

    with pytest.raises(KeysUnusable, match=r"some\.public"):
        keys_in(file)


def test_whom_the_hub_lets_in(hub, worker):
    public = worker.own("worker").public
    before = hub.signature()

    hub.authorize("worker", "gpu-1", [public])

    assert hub.admissions() == {raw_key(public): Admission("worker", "gpu-1")}
    assert hub.signature() != before
    hub.revoke("worker", "gpu-1")
    assert hub.admissions() == {}
    assert hub.signature() == before


def test_whom_a_mounted_secret_lets_in(hub, worker):
    """A Secret of Kubernetes is a flat directory; with all of it mounted, no restart is needed."""
    (own,) = keys_in(worker.path / "worker.public")
    before = hub.signature()
    flat = hub.path / "authorized.worker.pool.one.public"
    flat.write_bytes(own + b"\n")

    assert hub.signature() != before
    assert hub.admissions() == {raw_key(own): Admission("worker", "pool.one")}

    hub.revoke("worker", "pool.one")
    assert (hub.admissions(), flat.exists()) == ({}, False)


def test_who_is_in_a_directory_that_cannot_be_changed_is_revoked_elsewhere(hub, worker, monkeypatch):
    hub.authorize("worker", "one", keys_in(worker.path / "worker.public"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(KeysUnusable, match="take it out of the Secret"):
        hub.revoke("worker", "one")


def test_revoking_somebody_unknown_tells_who_there_is(hub, worker):
    hub.authorize("worker", "gpu-1", [worker.own("worker").public])

    with pytest.raises(KeysUnusable, match="there are: gpu-1"):
        hub.revoke("worker", "gpu-2")


@pytest.mark.parametrize("name", ["", "../up", "two words", ".hidden", "x" * 65])
def test_names_that_are_no_file_names_are_refused(hub, name):
    with pytest.raises(KeysUnusable, match="cannot be a name"):
        hub.authorize("worker", name, [new_key_pair().public])


def test_one_key_has_one_role(hub, worker):
    public = worker.own("worker").public
    hub.authorize("worker", "gpu-1", [public])

    with pytest.raises(KeysUnusable, match="authorized already, as worker:gpu-1"):
        hub.authorize("operator", "boss", [public])
    with pytest.raises(KeysUnusable, match="hub's own key"):
        hub.authorize("client", "hub", [hub.own("hub").public])
    (hub.path / "authorized" / "operator" / "boss.public").write_bytes(public)
    with pytest.raises(KeysUnusable, match="keys revoke"):
        hub.admissions()


def test_only_a_hub_authorizes(worker):
    with pytest.raises(KeysUnusable, match="keys new hub"):
        worker.authorize("client", "alice", [new_key_pair().public])


def test_while_a_key_rotates_both_are_good(hub, worker):
    former = worker.own("worker").public
    public = worker.rotate("worker")
    present = worker.own("worker").public

    hub.authorize("worker", "gpu-1", keys_in(public))

    assert keys_in(public) == (present, former)
    assert set(hub.admissions()) == {raw_key(present), raw_key(former)}
    hub.authorize("worker", "gpu-1", keys_in(worker.retire("worker")))
    assert set(hub.admissions()) == {raw_key(present)}
    assert mode(worker.path / "worker.secret") == 0o600


def test_a_workers_directory_gets_a_mesh_key_that_others_copy(tmp_path, hub, worker):
    client = KeyFolder(tmp_path / "client")
    client.new(["client"], hub.path / "hub.public", worker.path / "mesh.secret")

    assert len(worker.mesh_keys()) == 1
    assert len(worker.mesh_keys()[0]) == 32
    assert client.mesh_keys() == worker.mesh_keys()
    assert hub.mesh_keys() == ()
    assert mode(worker.path / "mesh.secret") == mode(client.path / "mesh.secret") == 0o600


def test_while_the_mesh_key_rotates_there_are_two(worker):
    (former,) = worker.mesh_keys()

    worker.rotate("mesh")

    present = worker.mesh_keys()[0]
    assert worker.mesh_keys() == (present, former)
    worker.retire("mesh")
    assert worker.mesh_keys() == (present,)
    assert present != former


def test_a_mesh_key_that_others_may_read_is_refused(worker):
    (worker.path / "mesh.secret").chmod(0o640)

    with pytest.raises(KeysUnusable, match="chmod 600"):
        worker.mesh_keys()


def test_the_listing_has_no_secret(hub, worker):
    hub.authorize("worker", "gpu-1", [worker.own("worker").public])

    rows = list(listing(hub))

    assert [(row["kind"], row["role"], row["name"]) for row in rows] == [
        ("own", "hub", ""),
        ("trusted", "hub", ""),
        ("authorized", "worker", "gpu-1"),
    ]
    assert hub.own("hub").secret.decode() not in str(rows)


def test_keys_to_text_and_back():
    pair = new_key_pair()

    assert key_text(raw_key(pair.public)) == pair.public
    with pytest.raises(InvalidOption, match="32 bytes"):
        key_text(b"short")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_a_shortage_is_no_reason_to_leave_anybody_out(hub, worker, monkeypatch, number):
    """A hub that has no file left to look with must not take everybody for revoked."""
    hub.authorize("worker", "gpu", keys_in(worker.path / "worker.public"))

    def short(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", short)
    with pytest.raises(KeysOutOfReach):
        hub.admissions([])
    monkeypatch.setattr(Path, "iterdir", short)
    with pytest.raises(KeysOutOfReach):
        hub.signature()
