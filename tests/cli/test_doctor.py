"""`taskmesh doctor` names each fault with its cure, and says that all is well where it is."""

import json
import re
import resource
import shlex
import signal
import sys
from pathlib import Path

import pytest

from taskmesh import Mesh
from tests.harness.ports import lasting_address
from tests.harness.program import command, outcome_of
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

pytestmark = pytest.mark.usefixtures("processes")

NOBODY = "tcp://127.0.0.1:1"


@pytest.fixture
def mesh(programs: Programs) -> tuple[Programs, str]:
    address = programs.hub()[1]
    programs.worker(address, "--name", "a", slots=2)
    return programs, address


def findings(programs: Programs, *line: str, **env: str) -> tuple[int, dict[str, str]]:
    """Return the exit code, and the text of what is bad by the name of its check."""
    outcome = programs.run("doctor", "--json", "--timeout", "2", *line, env=env)
    rows = [json.loads(text) for text in outcome.stdout.splitlines()]
    if "error" in rows[-1]:
        return outcome.returncode, {"settings": rows[-1]["error"]["message"]}
    bad: dict[str, str] = {}
    for row in rows:
        if not row["ok"]:
            bad[row["check"]] = "\n".join(filter(None, (bad.get(row["check"]), row["text"])))
    return outcome.returncode, bad


@pytest.mark.smoke
def test_all_is_well(mesh):
    programs, address = mesh

    outcome = programs.run("doctor", "--address", address)

    assert outcome.returncode == 0, outcome.stdout
    assert [line.split()[:2] for line in outcome.stdout.splitlines()] == [
        ["ok", f"{name}:"] for name in ("python", "files", "keys", "slot", "journal", "hub", "mesh", "task")
    ]
    assert "one for queue 'default' would run at a" in outcome.stdout


def test_no_hub_is_named_and_the_cure_works(programs):
    at = lasting_address()
    code, bad = findings(programs, "--address", at)
    assert (code, set(bad)) == (1, {"hub"})
    (cure,) = re.findall(r"`taskmesh (hub --bind \S+)`", bad["hub"])

    programs.start(*shlex.split(cure), "--json").ready()

    assert set(findings(programs, "--address", at)[1]) == {"task"}


def test_a_hub_that_stands_still_is_named(programs):
    hub, address = programs.hub()
    hub.process.send_signal(signal.SIGSTOP)
    try:
        code, bad = findings(programs, "--address", address)
    finally:
        hub.process.send_signal(signal.SIGCONT)

    assert (code, set(bad)) == (1, {"hub"})
    assert "within 2 s" in bad["hub"]


def test_a_queue_tags_and_a_paused_pool_are_named_and_the_cures_work(mesh):
    programs, address = mesh
    assert findings(programs, "--address", address, "--queue", "gpu", "--tags", "a100")[1] == {
        "task": "queue 'gpu' with tags a100: no pool serves it: taskmesh worker --queues gpu --tags a100"
    }
    programs.run("pool", "pause", "a", "--address", address)
    with Mesh(address) as client:
        waits = client.submit(workload.add, 1, 2)
        client.flush()
        code, bad = findings(programs, "--address", address)
        assert (code, set(bad)) == (1, {"mesh", "task"})
        cure = bad["mesh"].rpartition(": taskmesh ")[2]
        assert cure == bad["task"].rpartition(": taskmesh ")[2] == "pool resume a"
        programs.run(*shlex.split(cure), "--address", address)
        assert waits.result(20) == 3

    assert findings(programs, "--address", address) == (0, {})


def test_a_pool_that_stands_still_is_named(programs):
    address = programs.hub(TASKMESH_LEASE="100")[1]
    pool = programs.worker(address, "--name", "b", "--queues", "other")
    pool.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: "mesh" in findings(programs, "--address", address)[1], 50)
        assert "pool b has not been heard of" in findings(programs, "--address", address)[1]["mesh"]
    finally:
        pool.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("env", "cure"),
    [
        ({"TASKMESH_CONCURENCY": "2"}, "did you mean 'concurrency'"),
        ({"TASKMESH_GRACE": "soon"}, "has to be"),
        ({"TASKMESH_MAX_BYTES": "1"}, "write TASKMESH_"),
        ({"TASKMESH_ADDRESS": "127.0.0.1:5550"}, "tcp://127.0.0.1:5550"),
    ],
)
def test_a_wrong_variable_is_named_with_what_is_right(programs, env, cure):
    code, bad = findings(programs, **env)

    assert code in (1, 2)
    assert next(iter(env)) in str(bad) or "hub" in bad or "address" in str(bad)
    assert cure in str(bad)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("[poool]\ngrace = 1\n", "did you mean 'pool'"),
        ("[pool]\ngrase = 1\n", "did you mean 'grace'"),
        ("[pool\n", "taskmesh.toml"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_right(programs, text, cure):
    (programs.folder / "taskmesh.toml").write_text(text)

    code, bad = findings(programs)

    assert code == 2
    assert "taskmesh.toml" in bad["settings"]
    assert cure in bad["settings"]


def test_a_file_of_settings_that_is_not_there_is_named(programs):
    code, bad = findings(programs, "--config", "nowhere.toml")

    assert code == 2
    assert "nowhere.toml" in bad["settings"]


def test_keys_that_are_missing_or_open_to_others_are_named(programs: Programs):
    assert "taskmesh keys new" in findings(programs, "--keys", "mine")[1]["keys"]
    programs.run("keys", "new", "hub", "--keys", "hub")
    programs.run("keys", "new", "client", "--keys", "mine", "--hub", "hub/hub.public")
    assert "operator" in findings(programs, "--keys", "mine")[1]["keys"]
    programs.run("keys", "new", "operator", "--keys", "ops", "--hub", "hub/hub.public")
    assert "keys" not in findings(programs, "--keys", "ops", "--address", NOBODY)[1]
    (programs.folder / "ops" / "operator.secret").chmod(0o644)
    assert "chmod" in findings(programs, "--keys", "ops", "--address", NOBODY)[1]["keys"]


def test_a_key_that_the_hub_does_not_know_is_named_and_the_cure_works(programs: Programs):
    programs.run("keys", "new", "hub", "--keys", "hub")
    programs.run("keys", "new", "operator", "--keys", "ops", "--hub", "hub/hub.public")
    address = programs.hub(TASKMESH_KEYS="hub")[1]
    code, bad = findings(programs, "--keys", "ops", "--address", address)
    assert (code, set(bad)) == (1, {"hub"})
    assert "authorize" in bad["hub"]

    programs.run("keys", "authorize", "operator", "olga", "ops/operator.public", "--keys", "hub")

    wait_until(lambda: "hub" not in findings(programs, "--keys", "ops", "--address", address)[1], 30)


def test_a_hub_with_keys_and_a_caller_without_are_named(programs: Programs):
    programs.run("keys", "new", "hub", "--keys", "hub")
    address = programs.hub(TASKMESH_KEYS="hub")[1]

    assert "key" in findings(programs, "--address", address)[1]["hub"]


@pytest.mark.parametrize(
    ("journal", "word"),
    [
        ("nowhere/deep/journal", "nowhere"),
        ("garbage", "garbage"),
        ("redis://127.0.0.1:1/0", "onnect"),
    ],
)
def test_a_journal_that_cannot_be_used_is_named(programs: Programs, journal, word):
    (programs.folder / "garbage").write_bytes(b"no journal" * 1000)

    code, bad = findings(programs, "--address", NOBODY, TASKMESH_JOURNAL=journal)

    assert code in (1, 2)
    assert word in str(bad.get("journal", bad))


@pytest.mark.parametrize(
    ("limit", "most", "cure"), [("RLIMIT_NOFILE", 256, "ulimit -Hn"), ("RLIMIT_FSIZE", 1 << 16, "ulimit -f")]
)
def test_limits_of_files_are_named(programs: Programs, limit, most, cure):
    number = getattr(resource, limit)
    code = (
        f"import os, resource, sys; resource.setrlimit({number}, ({most}, {most})); "
        "os.execv(sys.executable, sys.argv[1:])"
    )
    line = [sys.executable, "-c", code, *command("doctor", "--address", NOBODY)]

    outcome = outcome_of(line, programs.folder, timeout=60)

    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    (found,) = [text for text in outcome.stdout.splitlines() if text.startswith("BAD files")]
    assert cure in found


def test_a_slot_that_cannot_start_is_named(programs: Programs):
    folder = Path(programs.folder, "broken")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\nif any('taskmesh:' in word for word in sys.orig_argv): raise SystemExit('no slots')\n"
    )

    code, bad = findings(programs, "--address", NOBODY, PYTHONPATH=str(folder))

    assert code == 1
    assert "`taskmesh worker`, which says why" in bad["slot"]
