"""A caller is told of workers that have another source of his module than he has."""

import importlib
import logging
import sys
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.client.futures import task_logs
from taskmesh.serialize.sources import LOGGER
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

WAIT_S = 30
SOURCE = "import time\n\ndef answer():\n    time.sleep(0.05)\n    return {!r}\n"
"""A module with a task that lasts long enough for all slots to have some."""
OLD, NEW = SOURCE.format("old"), SOURCE.format("new one")
TOLD = "workers run another source of the module edited"


@pytest.fixture
def edited(programs: Programs) -> Path:
    """A module where workers and commands are started."""
    programs.folder.mkdir(parents=True, exist_ok=True)
    file = programs.folder / "edited.py"
    file.write_text(OLD)
    return file


@pytest.fixture
def imported(edited, monkeypatch):
    """The same module in this program."""
    monkeypatch.syspath_prepend(str(edited.parent))
    monkeypatch.setattr(task_logs, "_told", set())
    monkeypatch.delitem(sys.modules, "edited", raising=False)
    yield importlib.import_module("edited")
    sys.modules.pop("edited", None)


def _workers_of_old(mesh, imported):
    """Run the module's task on all slots; return those that gave the old result."""
    futures = [mesh.submit(imported.answer) for _ in range(30)]
    assert {future.result(WAIT_S) for future in futures} == {"old"}
    return {future.worker for future in futures}


def _told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


@pytest.mark.parametrize("preloads", [(), ("edited",)], ids=["found", "preloaded"])
def test_a_command_is_told_until_the_worker_is_started_again(programs, edited, preloads):
    address = programs.hub()[1]
    worker = programs.worker(address, *preloads)
    first = programs.run("submit", "edited:answer", "--address", address)
    assert (first.stdout, first.stderr) == ("old\n", "")

    edited.write_text(NEW)
    for _ in range(2):
        later = programs.run("submit", "edited:answer", "--address", address)
        assert later.stdout == "old\n"
        assert later.stderr.count(TOLD) == 1
        assert f"they have imported {edited}" in later.stderr
        assert "Restart the workers" in later.stderr
        assert "taskmesh.register_by_value(edited)" in later.stderr

    worker.terminate()
    worker.end()
    programs.worker(address, *preloads)
    last = programs.run("submit", "edited:answer", "--address", address)
    assert (last.stdout, last.stderr) == ("new one\n", "")


def test_a_preloaded_module_that_is_edited_before_the_first_task_is_told_of(programs, edited):
    address = programs.hub()[1]
    programs.worker(address, "edited")
    assert programs.run("submit", "os:getpid", "--address", address).returncode == 0  # its slot has started

    edited.write_text(NEW)
    told = programs.run("submit", "edited:answer", "--address", address)

    assert told.stdout == "old\n"
    assert told.stderr.count(TOLD) == 1


@pytest.mark.parametrize("hub", ["thread", "process", "elsewhere"])
def test_a_program_is_told_once_of_each_edit(programs, edited, imported, hub, caplog):
    if hub == "elsewhere":
        address = programs.hub()[1]
        programs.worker(address, slots=3)
        mesh = Mesh(address)
    else:
        mesh = Mesh(workers=3, hub=hub)
    with mesh:
        wait_until(lambda: len(_workers_of_old(mesh, imported)) == 3, WAIT_S)
        assert _told(caplog) == []

        for count, source in enumerate([NEW, NEW + "\n"], 1):
            edited.write_text(source)
            importlib.reload(imported)
            wait_until(lambda: len(_workers_of_old(mesh, imported)) == 3, WAIT_S)
            assert len(_told(caplog)) == count
        assert {record.levelno for record in caplog.records if record.name == LOGGER} == {logging.WARNING}

        edited.write_text(OLD)
        importlib.reload(imported)
        assert mesh.submit(imported.answer).result(WAIT_S) == "old"
        assert len(_told(caplog)) == 2
