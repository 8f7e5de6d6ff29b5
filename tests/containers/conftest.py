"""The image is built once; every test has containers of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.box import IMAGE, WHEELS, Containers, build


@pytest.fixture(scope="session")
def image() -> str:
    return build(IMAGE, "workers/Containerfile", ".", {"PIP_OPTIONS": WHEELS.partition("=")[2]})


@pytest.fixture
def containers(image: str) -> Iterator[Containers]:
    running = Containers(Path(__file__).parent)
    try:
        yield running
    finally:
        running.end()
