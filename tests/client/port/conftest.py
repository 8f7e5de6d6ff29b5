"""Things that the tests of the client's port leave to pyzmq."""

from tests.harness.pyzmq_collector import pyzmq_collector  # noqa: F401  a fixture of all tests here
