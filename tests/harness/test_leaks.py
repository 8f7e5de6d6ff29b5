import os
import socket
import subprocess
import sys
import threading

import pytest

from tests.harness import leaks
from tests.harness.leaks import Holdings, left_behind
from tests.harness.program import ROOT
from tests.harness.waiting import wait_until

FORKS_AND_DIES = """
import os, sys
pid = os.fork()
if pid:
    print(pid)
    sys.exit()
os.close(1)
os.read(0, 1)
"""


@pytest.mark.usefixtures("processes")
def test_a_process_left_running_is_named_and_gone_is_forgiven():
    baseline = Holdings.now()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        left = left_behind(baseline, timeout=0.05)

        child.communicate(b"\n", timeout=10)

    assert any(f"process {child.pid} " in thing for thing in left)
    assert left_behind(baseline) == []


@pytest.mark.usefixtures("processes")
def test_an_orphan_of_a_dead_child_is_found_by_its_mark():
    """Its new parent, an ancestor of this process, is a stranger, and yet it is none."""
    baseline = Holdings.now()
    read, write = os.pipe()
    parent = subprocess.run(
        [sys.executable, "-c", FORKS_AND_DIES], stdin=read, stdout=subprocess.PIPE, check=True, timeout=20
    )
    orphan = int(parent.stdout)

    left = left_behind(baseline, timeout=0.05)
    os.close(write)
    os.close(read)

    assert any(f"process {orphan} " in thing for thing in left)
    wait_until(lambda: not left_behind(baseline, timeout=0.05), message="the orphan ends with its pipe")


def test_a_stranger_is_forgotten_when_it_ends():
    """Its id may be the next that a child of ours gets."""
    beyond = 1 << 23  # no process has this id: Linux gives ids below 2**22
    leaks.STRANGERS.add(beyond)

    Holdings.now()

    assert beyond not in leaks.STRANGERS


def test_a_thread_is_named_when_it_is_not_a_daemon_or_is_ours():
    baseline = Holdings.now()
    go = threading.Event()
    threads = [
        threading.Thread(target=go.wait, name="plain"),
        threading.Thread(target=go.wait, name="taskmesh-hub", daemon=True),
        threading.Thread(target=go.wait, name="other", daemon=True),
    ]
    for thread in threads:
        thread.start()

    left = left_behind(baseline, timeout=0.05)
    go.set()
    for thread in threads:
        thread.join(10)

    assert left == ["thread 'plain' (daemon=False)", "thread 'taskmesh-hub' (daemon=True)"]
    assert left_behind(baseline) == []


def test_a_descriptor_is_named_with_what_it_refers_to(tmp_path):
    baseline = Holdings.now()
    with open(tmp_path / "kept.log", "w") as kept:
        left = left_behind(baseline, timeout=0.05)

    assert left == [f"descriptor {kept_number(left)} -> {kept.name}"]
    assert left_behind(baseline) == []


def kept_number(left: list[str]) -> str:
    return left[0].split()[1]


@pytest.mark.usefixtures("processes")
def test_the_fixture_fails_a_test_that_leaks_and_spares_one_that_says_why(tmp_path):
    (tmp_path / "test_leaking.py").write_text(
        "import os\nimport pytest\n"
        "def test_leaks():\n    os.pipe()\n"
        "@pytest.mark.leaks(reason='shown here')\ndef test_excused():\n    os.pipe()\n"
        "@pytest.mark.leaks\ndef test_excused_without_a_reason():\n    os.pipe()\n"
        "def test_clean():\n    pass\n"
    )

    outcome = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            "-c",
            f"{ROOT}/pyproject.toml",
            str(tmp_path),
            "-q",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert "2 errors" in outcome.stdout, outcome.stdout + outcome.stderr
    assert "3 passed" in outcome.stdout, outcome.stdout
    assert "the marker leaks needs a reason" in outcome.stdout
    assert "left behind by this test" in outcome.stdout


def test_waiting_returns_the_value_and_names_what_never_came():
    values = iter([0, None, 7])

    assert wait_until(lambda: next(values)) == 7
    with pytest.raises(AssertionError, match=r"not within 0\.02 s: a signal \(last value: False\)"):
        wait_until(lambda: False, timeout=0.02, message="a signal")


CALLS = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
input()
"""


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.usefixtures("processes")
def test_a_connection_is_named_unless_a_kept_peer_holds_its_other_end(monkeypatch, kept):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", CALLS, str(port)], stdin=subprocess.PIPE) as caller:
            monkeypatch.setattr(leaks, "KEPT_PEERS", {caller.pid} if kept else {os.getpid()})
            baseline = Holdings.now()
            with server.accept()[0]:
                left = left_behind(baseline, timeout=0.05)
            caller.communicate(b"\n", timeout=10)

    assert [f": tcp from port {port} to" in words for words in left] == ([] if kept else [True])
