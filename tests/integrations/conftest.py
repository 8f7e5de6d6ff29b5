from tests.harness.pyzmq_collector import pyzmq_collector  # noqa: F401  a fixture of all tests here
