"""Rules for every test: it has a level, and leaves nothing behind; fault tests can be repeated."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.harness.leaks import Holdings, left_behind, mark_run
from tests.harness.levels import Guard, level_of

pytest_plugins = [
    "tests.harness.gate",
    "tests.harness.programs",
    "tests.harness.redis_server",
    "tests.harness.cluster",  # after those that it imports: pytest rewrites their assertions
]
settings.register_profile(
    "home", deadline=None
)  # two busy cores are no failure; CI's own profile has none either
if not os.environ.get("CI"):
    settings.load_profile("home")


guard = Guard()


def pytest_configure() -> None:
    mark_run()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by these marks
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        item.add_marker(level_of(item))
        if item.function.__module__ != item.module.__name__:  # imported: its own module shows it already
            item.own_markers = [mark for mark in item.own_markers if mark.name != "smoke"]


def pytest_collection_finish() -> None:
    """Keep what is loaded out of later collections: each that a test asked for took 0.8 s of CPU time."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--repeat", type=int, default=1, metavar="N", help="run each test marked `fault` N times"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("--repeat")
    if times > 1 and metafunc.definition.get_closest_marker("fault"):
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(times))


@pytest.fixture(scope="session")
def processes() -> None:
    """Makes an integration test of each test that asks for it, itself or by a fixture of its own."""


@pytest.fixture(autouse=True)
def unit_tests_start_no_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a unit test that starts a process."""
    guard.closed = request.node.get_closest_marker("unit") is not None
    yield
    guard.closed = False


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, thread or descriptor; the marker leaks(reason) excuses one."""
    excuse = request.node.get_closest_marker("leaks")
    if excuse and not (excuse.args or excuse.kwargs.get("reason")):
        pytest.fail("the marker leaks needs a reason")
    baseline = Holdings.now()
    yield
    if not excuse and (left := left_behind(baseline)):
        pytest.fail("left behind by this test:\n  " + "\n  ".join(left), pytrace=False)
