"""`taskmesh keys`, as a user runs it."""

import json

from tests.harness.programs import Programs, rows


def test_keys_are_made_authorized_shown_and_revoked(programs: Programs):
    for line in (
        "new hub --keys hub",
        "new worker --keys gpu --hub hub/hub.public",
        "authorize worker gpu-1 gpu/worker.public --keys hub",
    ):
        outcome = programs.run("keys", *line.split())
        assert outcome.returncode == 0, outcome.stderr

    shown = rows(programs.run("keys", "show", "--json", env={"TASKMESH_KEYS": "hub"}))

    public = (programs.folder / "gpu" / "worker.public").read_text().split()[-1]
    assert [(row["kind"], row["name"], row["public"]) for row in shown if row["role"] == "worker"] == [
        ("authorized", "gpu-1", public)
    ]
    outcome = programs.run("keys", "revoke", "worker", "gpu-1", "--keys", "hub", "--json")
    assert json.loads(outcome.stdout) == {"revoked": "worker:gpu-1"}
    assert "gpu-1" not in programs.run("keys", "show", "--keys", "hub").stdout


def test_a_rotated_key_is_another_one(programs: Programs):
    programs.run("keys", "new", "client", "--keys", "mine")
    secret = programs.folder / "mine" / "client.secret"
    former = secret.read_bytes()

    outcome = programs.run("keys", "rotate", "client", "--keys", "mine")

    assert outcome.returncode == 0, outcome.stderr
    assert "authorize it at the hub" in outcome.stdout
    assert secret.read_bytes() != former
    assert len((programs.folder / "mine" / "client.public").read_text().splitlines()) == 3
    assert programs.run("keys", "rotate", "client", "--end", "--keys", "mine").returncode == 0
    assert len((programs.folder / "mine" / "client.public").read_text().splitlines()) == 2


def test_wrong_usage_says_what_would_be_right(programs: Programs):
    for line, complaint in (
        (["new", "client"], "--keys DIR"),
        (["new", "nobody", "--keys", "mine"], "take hub, client, worker or operator"),
        (["authorize", "hub", "x", "y", "--keys", "mine"], "take client, worker or operator"),
        (["revoke", "client", "alice", "--keys", "mine"], "no client is authorized"),
        (["show", "--keys", "mine"], "taskmesh keys new"),
    ):
        outcome = programs.run("keys", *line)

        assert outcome.returncode == 2
        assert complaint in outcome.stderr


def test_loose_permissions_are_refused(programs: Programs):
    programs.run("keys", "new", "client", "--keys", "mine")
    (programs.folder / "mine" / "client.secret").chmod(0o644)

    outcome = programs.run("keys", "show", "--keys", "mine")

    assert outcome.returncode == 2
    assert "chmod 600" in outcome.stderr
