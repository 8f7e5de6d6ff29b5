"""The trees of the source are shared by the tests of this folder, and by no others."""

import pytest

from tests.architecture.source import forget


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        forget()
