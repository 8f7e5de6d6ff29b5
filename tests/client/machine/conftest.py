"""A client machine, and one that a hub has welcomed, for the tests of what clients do."""

from tests.core.client_rig import client, session  # noqa: F401  fixtures of all tests here
