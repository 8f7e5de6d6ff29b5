"""Middleware of tests, in a module that workers import."""

import os
from collections.abc import Iterator

from taskmesh import Call, Middleware, current_task, task


class Recorder(Middleware[str]):
    """Writes down what it sees, a line for each.

    Attributes:
        path: the file.
    """

    sees_arguments = True

    def __init__(self, path: str = "") -> None:
        self.path = path or os.environ.get("RECORDER", os.devnull)

    def write(self, *words: object) -> None:
        with open(self.path, "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def around_submit(self, call: Call) -> Iterator[None]:
        call.headers.setdefault("request", "r7")
        yield
        self.write("submitted", call.name, call.items, call.headers, bool(call.id) or call.items != 1)

    def around_task(self, call: Call) -> Iterator[None]:
        self.write("begins", call.name, call.attempt, call.items, call.headers, call.arguments)
        try:
            yield
        finally:
            self.write("ends", call.name, repr(call.error))

    def on_failure(self, call: Call, error: BaseException) -> None:
        self.write("fails", call.name, call.attempt, repr(error))

    def process_start(self) -> Iterator[str]:
        self.write("starts", os.getpid())
        yield f"model of {os.getpid()}"
        self.write("stops", os.getpid())


recorder = Recorder()


@task(name="headers")
def headers() -> dict[str, str]:
    return dict(current_task().headers)


@task(name="parent")
def parent() -> dict[str, str]:
    return headers.submit().result()
