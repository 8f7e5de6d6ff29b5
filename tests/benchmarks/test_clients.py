"""The row of several clients at once: processes of their own that join what a turn has opened."""

from __future__ import annotations

import pytest

from benchmarks import rows
from benchmarks.clients import await_ready, start_client
from benchmarks.contender import CLIENT_ROWS, CONTENDERS, load
from benchmarks.metrics import METRICS
from benchmarks.rows import Scale

pytestmark = pytest.mark.usefixtures("processes")


def test_four_clients_are_measured_over_one_alone_and_beside_a_lone_task() -> None:
    found = rows.measure("taskmesh-remote", load("taskmesh-remote")(), "clients", Scale(2, quick=True))

    assert set(found.figures) == {key for key, metric in METRICS.items() if metric.row == "clients"}
    assert all(value > 0 for value in found.figures.values())
    assert found.figures["clients_ratio"] == found.figures["clients"] / found.detail["alone"]


def test_contenders_with_the_row_can_be_joined() -> None:
    sharing = [name for name in CONTENDERS if load(name).rows >= CLIENT_ROWS]

    assert sharing == ["taskmesh-remote", "dask", "ray", "celery"]
    assert all(hasattr(load(name), "join") for name in sharing)


def test_a_client_that_cannot_join_is_told_of() -> None:
    with start_client("benchmarks.clients", "dusk", "tcp://127.0.0.1:1", "1") as client:
        with pytest.raises(RuntimeError, match="a client has ended"):
            await_ready([client])
        client.communicate()
