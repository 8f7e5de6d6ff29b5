"""The contract of journals, kept by each of them."""

from pathlib import Path

import pytest

from taskmesh.journal.file import FileJournal
from tests.journal.contract import Contract, Make
from tests.simulation.memory_journal import MemoryDisk, MemoryJournal


class TestMemory(Contract):
    @pytest.fixture
    def place(self) -> Make:
        disk = MemoryDisk()
        return lambda: MemoryJournal(disk)


class TestFile(Contract):
    @pytest.fixture(params=["everysec", "strict"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> Make:
        return lambda: FileJournal(tmp_path / "tasks.journal", strict=request.param == "strict")
