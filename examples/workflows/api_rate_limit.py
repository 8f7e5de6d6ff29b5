"""API rate limit: 20 calls a second in the whole mesh, and 2 at a time for each user."""

import time

from taskmesh import Limit, Mesh, gather, task


@task(limit=["api:20/s", Limit("user", concurrency=2, by=lambda user, x: user)], retries=3)
def call(user: str, x: int) -> float:
    return time.time()


with Mesh(workers=4):
    times = sorted(gather([call.submit(f"user-{x % 5}", x) for x in range(30)], timeout=30))
    print(len(times), "calls in", round(times[-1] - times[0]), "s")  # 30 calls in 1 s
