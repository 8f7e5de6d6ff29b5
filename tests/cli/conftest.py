"""A hub and a pool that the tests of one module share."""

from collections.abc import Iterator

import pytest

from tests.harness.programs import Programs, shared


@pytest.fixture(scope="module")
def shared_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    yield from shared(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def address(shared_programs: Programs) -> str:
    """The address of a hub with a pool `steady` of one slot."""
    address = shared_programs.hub()[1]
    shared_programs.worker(address, "--name", "steady")
    return address
