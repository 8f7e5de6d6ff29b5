"""`taskmesh submit`, `result` and `fulfil`: a call of a function, its outcome, and the value of a promise."""

from __future__ import annotations

import importlib
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from taskmesh.cli.command import FAILED, LONGEST_TASK, TOO_LATE, Reach, TaskId, command, hub_command
from taskmesh.cli.output import Output, is_carried, printable, rendered
from taskmesh.errors import ConfigError, HubUnreachable, TaskMeshError

if TYPE_CHECKING:
    from taskmesh.client.futures.future import TaskFuture
    from taskmesh.client.submitter import Submitter
    from taskmesh.config import Config
    from taskmesh.mesh import Mesh

PATIENCE = 3.0
"""Seconds between two questions to the hub; a task that has ended by then is asked nothing about."""
ANSWER_S = 1.0
"""Seconds that the hub has to answer; the task's end is noticed so much later at most."""

Function = Annotated[str, typer.Argument(metavar="MOD:FUNC", help="The function, like package.module:name.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARG", help="JSON, or else text; NAME=VALUE for an argument by name."),
]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one task, as `@task` has them; None for one that is not given."""

    queue: Annotated[str | None, typer.Option(metavar="NAME", help="The queue of the task.")] = None
    tags: Annotated[str | None, typer.Option(metavar="A,B", help="Tags that its pool must have.")] = None
    priority: Annotated[int | None, typer.Option(metavar="N", help="Higher goes first; default: 0.")] = None
    retries: Annotated[int | None, typer.Option(metavar="N", help="Retries after an error; default: 0.")] = (
        None
    )
    hard_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Kill the process of an attempt that runs for longer."),
    ] = None
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Do not start it before so long.")
    ] = None
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Do not start it before, as 2026-12-01T09:00:00+01:00.")
    ] = None
    after: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Wait for the task with this id; may come again.")
    ] = None
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Share the outcome of a living task with this key.")
    ] = None
    limit: Annotated[
        list[str] | None, typer.Option(metavar="LIMIT", help="Such as api:50/s or gpu:2; may come again.")
    ] = None
    detach: Annotated[
        bool | None,
        typer.Option(
            "--detach", help="Print the task's id once it is accepted; `taskmesh result` fetches it."
        ),
    ] = None
    keep: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Keep its outcome for so long; detached: a day.")
    ] = None

    def of(self, mesh: Mesh) -> Submitter:
        """Return a surface of the mesh whose tasks have these options.

        Raises:
            ConfigError: one is wrong.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None and value != []}
        if self.tags is not None:
            given["tags"] = tuple(filter(None, (tag.strip() for tag in self.tags.split(","))))
        if self.at is not None:
            given["at"] = moment_of(self.at)
        return mesh.with_options(**given)


@command("address", "keys")
def submit(
    config: Config,
    out: Output,
    function: Function,
    arguments: Arguments = None,
    *,
    options: Options,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=LONGEST_TASK,
            help="Cancel the task if it has not finished by then.",
        ),
    ] = None,
) -> None:
    """Run a function on a pool and print its result. Write `--` before arguments that begin with a dash.

    Example:
        taskmesh submit math:hypot 3 4 --retries 2
    """
    from taskmesh.mesh import Mesh
    from taskmesh.pool.modules import use_current_directory

    use_current_directory()
    called = resolve(function)
    positional, named = parse(arguments or ())
    mesh = Mesh(config=config)
    surface = options.of(mesh)  # what is wrong with them shows before a hub is looked for
    with mesh:
        future = surface.submit(called, *positional, **named)
        if options.detach:
            mesh.flush()
            out.value(details_of(future), future.task_id)
            return
        error = error_of(future, mesh, out, timeout, "cancelled")
    report(out, error, future)


@command("address", "keys")
def result(
    config: Config,
    out: Output,
    task_id: TaskId,
    *,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=LONGEST_TASK, help="How long to wait for its end.")
    ] = 0.0,
) -> None:
    """Print the result of a task by its id: of one on its way, or one whose outcome is kept.

    Example:
        taskmesh result 084a60bcc72ce7810000000000000001 --wait 60
    """
    from taskmesh.mesh import Mesh

    with Mesh(config=config) as mesh:
        future = mesh.attach(task_id)
        error = error_of(future, mesh, out, max(wait, ANSWER_S), "it goes on")
    report(out, error, future)


@hub_command
def fulfil(
    reach: Reach,
    out: Output,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the promise.")],
    value: Annotated[str, typer.Argument(metavar="[VALUE]", help="JSON, else taken as text.")] = "null",
    *,
    error: Annotated[
        str, typer.Option(metavar="TEXT", help="Let it fail, with this as the error's text.")
    ] = "",
) -> None:
    """Give a promise its value; exit code 1 if somebody has done so before: the first one counts.

    Example:
        taskmesh fulfil payment-17 true
    """
    from taskmesh.mesh import Mesh

    failure = RuntimeError(error) if error else None
    with Mesh(config=reach.config) as mesh:
        first = mesh.fulfil(key, decoded(value), error=failure, timeout=reach.timeout)
    told = "done" if first else "somebody has fulfilled it before"
    out.value({"key": key, "fulfilled": first}, f"{printable(key)}: {told}")
    if not first:
        raise typer.Exit(FAILED)


def error_of(
    future: TaskFuture[Any], mesh: Mesh, out: Output, timeout: float | None, after: str
) -> BaseException | None:
    """Wait for the task; return its error, None for a result. Print on stderr why it does not start.

    The command ends if that takes too long.

    Args:
        future: the task, or an attachment to it.
        mesh: where it is.
        out: where reasons to wait are printed.
        timeout: seconds to wait.
        after: what becomes of the task when they are over.
    """
    deadline = time.monotonic() + (math.inf if timeout is None else timeout)
    printed: object = None
    while True:
        left = deadline - time.monotonic()
        try:
            return future.exception(max(0.0, min(left, PATIENCE)))
        except CancelledError:
            return CancelledError("somebody has cancelled it")
        except TimeoutError:
            if left <= PATIENCE:
                future.cancel()
                late = TimeoutError(f"not finished within {timeout:g} s; {after}")
                out.error(late, details_of(future))
                raise typer.Exit(TOO_LATE) from None
        printed = _print_reason(future, mesh, out, printed)


def _print_reason(future: TaskFuture[Any], mesh: Mesh, out: Output, former: object) -> object:
    """Print the reason why the task waits if it has changed; return the present one.

    Nothing is printed of a task that has started, unless a reason to wait was printed before.
    """
    from taskmesh.client.submitter import client_of  # loaded with the mesh; `--help` does without

    try:
        answer = client_of(mesh).open().query("task", future.task_id, timeout=ANSWER_S)
    except HubUnreachable:
        answer = {"state": "unreachable", "why": "the hub does not answer"}
    except TaskMeshError:  # it has ended just now, or this hub is a new one that it goes to again
        return former
    found = cast("dict[str, Any]", answer)
    state, why = found["state"], found["why"]
    # Reasons count seconds and places down: the attempt shows whether it is another wait.
    now = (state, found.get("attempt"), re.sub(r"[\d.,]+", "", why))
    waits = state in ("queued", "unreachable")
    if now == former or not (waits or (former and state == "running")):
        return former
    out.news("waiting" if waits else "started", f"task {future.task_id}: {why}", {"state": state, "why": why})
    return now


def report(out: Output, error: BaseException | None, future: TaskFuture[Any]) -> None:
    """Print how the task ended, and end the command if that was badly."""
    if error is not None:
        report_failure(out, error, future)
        raise typer.Exit(FAILED)
    result = future.result(0)
    text = result if isinstance(result, str) else rendered(result)
    form = "json" if is_carried(result) else "repr"
    out.value({**details_of(future), "result": result, "result_form": form}, text)


def report_failure(out: Output, error: BaseException, future: TaskFuture[Any]) -> None:
    """Print why the task failed, with the remote traceback."""
    details = details_of(future)
    trace = future.traceback_text or ""
    if out.as_json:
        out.error(error, {**details, "traceback": trace})
        return
    out.text(f"taskmesh: task {details['task_id']} failed: {type(error).__name__}: {rendered(error, str)}")
    for note in getattr(error, "__notes__", ()):
        out.text(f"  {note}")
    if trace:
        out.text(trace)


def details_of(future: TaskFuture[Any]) -> dict[str, object]:
    """Return the fields of a task in JSON, besides its result."""
    return {
        "task_id": future.task_id,
        "state": str(future.state),
        "worker": future.worker,
        "attempt": future.attempt,
    }


def resolve(text: str) -> Callable[..., Any]:
    """Return the function that MOD:FUNC names.

    Raises:
        ConfigError: there is none; the message says what was looked for.
    """
    module_name, colon, path = text.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError(f"{text!r} is not MOD:FUNC: write package.module:function")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"module {module_name!r} cannot be imported here: {type(error).__name__}: {error}. It is looked "
            "for in the current directory, on PYTHONPATH and among what is installed"
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigError(f"{module_name!r} has no {path!r}") from None
    if not callable(found):
        raise ConfigError(f"{text} is a {type(found).__name__}, not a function")
    called: Callable[..., Any] = found
    return called


def parse(arguments: Sequence[str]) -> tuple[list[object], dict[str, object]]:
    """Return arguments by position and by name: the value of JSON, else the text itself.

    Raises:
        ConfigError: one by position follows one by name, or a name comes twice.
    """
    positional: list[object] = []
    named: dict[str, object] = {}
    for text in arguments:
        name, mark, value = text.partition("=")
        if mark and name.isidentifier():
            if name in named:
                raise ConfigError(f"argument {name!r} is given twice")
            named[name] = decoded(value)
        elif named:
            raise ConfigError(f"{text!r} comes after an argument by name: put those last")
        else:
            positional.append(decoded(text))
    return positional, named


def moment_of(text: str) -> datetime:
    """Return the time that a text means; without a zone it is in UTC.

    Raises:
        ConfigError: it means none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time: write it as 2026-11-23T00:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def decoded(text: str) -> object:
    """Return the value that a JSON text means, or the text.

    Raises:
        ConfigError: it is nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError(
            f"{text[:20]}... is nested too deeply to be read as JSON: pass the name of a file "
            "that the function reads"
        ) from None
    except ValueError:
        return text
