"""Dask's collections on a mesh, by `mesh.executor()`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from taskmesh import Mesh

REASON = "dask: make .venv/ready-peers"
dask = pytest.importorskip("dask", reason=REASON)
array = pytest.importorskip("dask.array", reason=REASON)
dataframe = pytest.importorskip("dask.dataframe", reason=REASON, exc_type=ImportError)
numpy = pytest.importorskip("numpy", reason=REASON)
pandas = pytest.importorskip("pandas", reason=REASON)


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Mesh]:
    """Have dask compute on a mesh."""
    with Mesh(workers=2) as mesh, dask.config.set(scheduler=mesh.executor()):
        yield mesh


def test_arrays_are_computed_in_slots(mesh: Mesh) -> None:
    left = numpy.arange(250_000.0).reshape(500, 500)
    blocks = array.from_array(left, chunks=(100, 250))

    product = (blocks @ blocks.T + blocks.mean(axis=0)).compute()

    assert numpy.allclose(product, left @ left.T + left.mean(axis=0))
    assert mesh.status()["finished"] > 10


def test_frames_are_computed_in_slots(mesh: Mesh) -> None:
    frame = pandas.DataFrame({"shop": [f"s{x % 7}" for x in range(7000)], "price": range(7000)})
    parts = dataframe.from_pandas(frame, npartitions=8)

    sums = parts.groupby("shop").price.sum().compute()
    shuffled = parts.shuffle("shop").map_partitions(len).compute()

    assert sums.to_dict() == frame.groupby("shop").price.sum().to_dict()
    assert shuffled.sum() == 7000
    assert mesh.status()["finished"] > 10


def test_delayed_calls_run_in_slots_and_their_errors_reach_the_caller() -> None:
    processes = dask.compute(*(dask.delayed(os.getpid, pure=False)() for _ in range(8)))
    assert os.getpid() not in processes

    with pytest.raises(ZeroDivisionError):
        dask.delayed(divmod)(1, dask.delayed(int)("0")).compute()
