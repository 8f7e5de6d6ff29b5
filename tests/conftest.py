"""What holds for every test: nothing is left behind, and fault tests can be repeated."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.leaks import Holdings, left_behind, mark_run

pytest_plugins = ["tests.redis_server"]
settings.register_profile(
    "home", deadline=None
)  # two busy cores are no failure; CI's own profile has none either
if not os.environ.get("CI"):
    settings.load_profile("home")


def pytest_configure() -> None:
    mark_run()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--repeat", type=int, default=1, metavar="N", help="run each test marked `fault` N times"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("--repeat")
    if times > 1 and metafunc.definition.get_closest_marker("fault"):
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(times))


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
