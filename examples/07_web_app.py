"""A web app: handlers await tasks, and answer others meanwhile.

It needs fastapi and uvicorn. Run it, and open http://127.0.0.1:8000/primes/1000 in a browser.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException

from taskmesh import Mesh, task
from taskmesh.errors import ConfigError, TaskTimeout, UnknownTask


@task(timeout=10)
def primes_below(n: int) -> int:
    return sum(all(k % d for d in range(2, int(k**0.5) + 1)) for k in range(2, n))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # With workers elsewhere: Mesh("tcp://HOST:5550", hub_timeout=30)
    async with Mesh(workers=2) as mesh:
        app.state.mesh = mesh
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/primes/{n}")
async def primes(n: int) -> dict[str, int]:
    try:
        return {"primes": await app.state.mesh.call(primes_below, n)}
    except TaskTimeout:
        raise HTTPException(503, "this takes too long") from None


@app.post("/jobs/{n}")
async def start(n: int) -> dict[str, str]:
    job = primes_below.with_options(keep=600).submit(n)
    return {"id": job.task_id}  # at once; the result can be had for ten minutes


@app.get("/jobs/{task_id}")
async def result(task_id: str) -> dict[str, int]:
    try:
        return {"primes": await app.state.mesh.attach(task_id)}
    except (ConfigError, UnknownTask):
        raise HTTPException(404, "no such job") from None


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
