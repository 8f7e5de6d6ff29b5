"""Limits and retries: an interface that bears so many calls, and fails now and then."""

from taskmesh import Limit, Mesh, NoRetry, Retry, RetryAfter, current_task, gather, task


class TryAgain(Exception):
    """Stands for an error that goes by."""


@task(
    limit=["api:20/s", Limit("user", concurrency=2, by=lambda user, page: user)],  # in the whole mesh
    retries=Retry(max=3, on=(TryAgain,), backoff=0.1),
    timeout=10,
)
def fetch(user: str, page: int) -> str:
    if page == 2 and current_task().attempt == 1:
        raise TryAgain
    return f"{user}/{page}"


@task(retries=1)
def patient() -> str:
    if current_task().attempt == 1:
        raise RetryAfter(0.2)  # the server has said when to come again
    return "here"


@task(retries=5)
def strict(user: str) -> None:
    raise NoRetry(PermissionError(f"{user} may not do this"))


if __name__ == "__main__":
    with Mesh(workers=4):
        calls = [fetch.submit(user, page) for user in ("ann", "bob") for page in (1, 2)]
        print(gather(calls, timeout=30))  # ['ann/1', 'ann/2', 'bob/1', 'bob/2']
        print([call.attempt for call in calls])  # [1, 2, 1, 2]
        print(patient.submit().result(timeout=30))  # here

        refused = strict.submit("eve")
        print(repr(refused.exception(timeout=30)))  # PermissionError('eve may not do this')
        print(refused.attempt)  # 1
