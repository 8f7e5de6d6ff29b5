"""Modules are looked for in a process of their own before a pool says that it is ready."""

import os
import sys
import threading

import pytest

from taskmesh.errors import ConfigError
from taskmesh.pool.modules import check_modules, use_current_directory


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    use_current_directory()
    return tmp_path


def test_a_current_directory_that_is_gone_is_told(folder, monkeypatch):
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(ConfigError, match="has been deleted: change to one that exists"):
        use_current_directory()


def test_modules_of_the_current_directory_are_found(folder):
    (folder / "mine.py").write_text("VALUE = 1\n")

    check_modules(["mine", "json.decoder"])

    assert "mine" not in sys.modules


def test_a_missing_module_is_named_with_the_cure():
    with pytest.raises(
        ConfigError, match=r"module 'absent\.tasks' .*not found.*contains 'absent'.*PYTHONPATH"
    ):
        check_modules(["json", "absent.tasks"])


def test_a_module_that_another_one_needs_is_named(folder):
    (folder / "mine.py").write_text("import absent\n")

    with pytest.raises(ConfigError, match="module 'mine' needs 'absent', which is not found"):
        check_modules(["mine"])


def test_an_error_while_importing_is_told(folder):
    (folder / "mine.py").write_text("1 / 0\n")

    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero"):
        check_modules(["mine"])


def test_a_module_that_ends_the_process_is_told(folder):
    (folder / "mine.py").write_text("import os\nos._exit(7)\n")

    with pytest.raises(ConfigError, match="ended the process with status 7"):
        check_modules(["mine"])


def test_what_is_no_name_of_a_module_is_refused():
    with pytest.raises(ConfigError, match=r"'mine\.py;x' is no module name"):
        check_modules(["mine.py;x"])


def test_a_child_that_a_module_leaves_behind_does_not_hold_the_check_up(folder):
    (folder / "mine.py").write_text(
        "import os\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        f"    os.open({str(folder / 'gate')!r}, os.O_RDONLY)  # until somebody opens its other end\n"
        "    os._exit(0)\n"
    )
    os.mkfifo(folder / "gate")
    checked = threading.Event()

    def check() -> None:
        check_modules(["mine"])
        checked.set()

    thread = threading.Thread(target=check)
    thread.start()
    in_time = checked.wait(10)
    os.close(os.open(folder / "gate", os.O_WRONLY))  # the child ends
    thread.join(10)

    assert in_time


def test_threads_that_a_module_starts_do_not_hold_the_check_up(folder):
    (folder / "mine.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    )

    check_modules(["mine"])

    assert "mine" not in sys.modules
