"""Tasks on a GPU with CuPy; without a GPU the same lines run on NumPy, on a laptop for instance."""

from functools import cache
from typing import Any

from taskmesh import task

try:
    import cupy as xp
except ImportError:
    import numpy as xp


@cache
def weights(size: int) -> Any:
    """Load the weights, which is expensive: once in each slot, on the device from then on."""
    return xp.random.default_rng(7).standard_normal((size, size))


@task(queue="gpu", tags=("gpu",), retries=2)
def embed(rows: list[list[float]]) -> list[list[float]]:
    """One vector of length 1 for each row."""
    batch = xp.asarray(rows)
    found = batch @ weights(batch.shape[1])
    return (found / xp.linalg.norm(found, axis=1, keepdims=True)).tolist()
