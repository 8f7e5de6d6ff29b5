"""One cluster for all tests of this folder; it tells its programs' last words when one fails."""

from collections.abc import Iterator

import pytest

from tests.containers.box import IMAGE, WHEELS, build
from tests.kube.cluster import Cluster
from tests.kube.release import Release


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        running.start()
        yield running
    except AssertionError:
        print(running.logs())  # noqa: T201  pytest shows it with the failure
        raise
    finally:
        running.end()


@pytest.fixture(scope="session")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Release:
    build(IMAGE, "workers/Containerfile", ".", {"PIP_OPTIONS": WHEELS.partition("=")[2]})
    made = Release(cluster, tmp_path_factory.mktemp("release"))
    made.prepare()
    return made
