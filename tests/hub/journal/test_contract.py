"""The contract of journals, kept by each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmesh.hub.journal.address import JournalAddress
from taskmesh.hub.journal.file import FileJournal
from tests.harness.redis_server import RedisServer, serving
from tests.hub.journal.contract import Contract, Make
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


class TestRedis(Contract):
    @pytest.fixture(params=["everysec", "always"])
    def kept(self, request: pytest.FixtureRequest, tmp_path: Path, processes: None) -> Iterator[RedisServer]:
        yield from serving(tmp_path, "--appendonly", "yes", "--appendfsync", request.param)

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest, kept: RedisServer) -> Make:
        from taskmesh.hub.journal.redis import RedisJournal

        with kept.client() as client:
            strict = client.config_get("appendfsync")["appendfsync"] == "always"
        return lambda: RedisJournal(lambda: JournalAddress.of(kept.url), strict)
