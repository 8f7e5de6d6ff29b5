"""A supervisor for the pool's tests, and gates for its tasks."""

from collections.abc import Iterator

import pytest

from tests.pool.slots.driver import Driver


@pytest.fixture
def driver(processes: None) -> Iterator[Driver]:
    with Driver() as driver:
        yield driver
        driver.values.clear()  # large ones keep their files open
