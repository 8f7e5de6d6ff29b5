"""The level of each test: unit, integration, fault or platform.

A test's level follows from its folder and its fixtures, never from a mark that somebody has to remember. A
unit test starts no process: one that does without asking for the fixture `processes` fails.
"""

import sys
from collections.abc import Iterable

import pytest

PLATFORM = {"containers", "helm", "kube", "spark"}
FAULTS = {"chaos", "faults"}
INTEGRATION = {
    f"tests/{folder}"
    for folder in (
        "client/port",
        "conformance",
        "dashboard",
        "hosting",
        "hosting/abuse",
        "hub",
        "integrations",
        "pool",
        "sockets",
    )
}
"""Folders whose tests use real sockets."""
LONG = {
    "tests/fuzz/test_machines.py",
    "tests/simulation/test_guards.py",
    "tests/simulation/test_small_bounds.py",
}
"""Pure, but with more seeds than anybody waits for after each change: integration tests, too."""
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen"}
"""Audit events that tell of a new process (https://docs.python.org/3/library/audit_events.html)."""


def level_of(item: pytest.Item) -> str:
    """Returns the mark of a test's level."""
    root = item.config.rootpath
    path = item.path.relative_to(root) if item.path.is_relative_to(root) else item.path
    folder = path.parts[1]
    if folder in PLATFORM:
        return "platform"
    if folder in FAULTS or item.get_closest_marker("fault"):
        return "fault"
    fixtures: Iterable[str] = getattr(item, "fixturenames", ())
    if path.parent.as_posix() in INTEGRATION or "processes" in fixtures or path.as_posix() in LONG:
        return "integration"
    return "unit"


class Guard:
    """Fails a unit test that starts a process.

    Attributes:
        closed: a unit test runs.
    """

    def __init__(self) -> None:
        self.closed = False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.closed and event in STARTS:
            raise AssertionError(
                f"a unit test starts a process ({event}): let it ask for the fixture `processes`"
            )
