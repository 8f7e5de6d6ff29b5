"""Helm 4's library starts its runtime once, before the first test counts its descriptors."""

import importlib.util

import pytest

from tests.helm.rendering import MINIMAL, rendered


@pytest.fixture(scope="session", autouse=True)
def warm() -> None:
    if importlib.util.find_spec("helm_python") and importlib.util.find_spec("yaml"):
        rendered(MINIMAL)
