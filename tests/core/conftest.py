"""A client machine, and one that a hub has welcomed, for the tests of what clients do."""

import pytest

from tests.core.client_rig import Client


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def session(client) -> Client:
    client.welcome()
    client.sent.clear()
    return client
