"""Parts that all commands share: settings as options, the hub that is asked, and exit codes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from taskmesh.cli.output import Output, Unprintable, rendered
from taskmesh.cli.program_log import whole_lines
from taskmesh.core.ids import parse
from taskmesh.errors import ConfigError, HubUnreachable, TaskMeshError

if TYPE_CHECKING:
    from taskmesh.client.port.port import SubmitPort
    from taskmesh.config import Config

OK, FAILED, USAGE, NO_HUB, TOO_LATE, INTERRUPTED = 0, 1, 2, 3, 4, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 the task failed, the hub refused what was asked, or the command itself failed; "
    "2 wrong usage or configuration (an address that may not be used or is taken, a module that cannot be "
    "imported); 3 no hub answered, or none let us in (keys); 4 not finished within --timeout or --wait; "
    "130 interrupted."
)
DEFAULT_ADDRESS = "tcp://127.0.0.1:5550"
LONGEST_ANSWER = 1_000_000
"""Seconds that an answer may be waited for; poll(2) takes no more than 24 days."""
LONGEST_TASK = 1_000_000_000
"""Seconds that a task may be waited for; a lock takes no more than 292 years."""
EVERYTHING = 1_000_000
"""Rows to ask a hub for, where all are wanted."""

Command = Callable[..., None]
_TEXT, _ASKED = str | None, "TASKMESH_ADDRESS, the configuration's"


def _setting(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(None, *names, metavar=metavar, help=text)


OPTIONS = {
    "address": _setting("ENDPOINT", f"The hub's gateway. Default: {_ASKED}, {DEFAULT_ADDRESS}."),
    "bind": _setting(
        "ENDPOINT",
        "Where to listen: tcp://HOST:PORT (collector and control take the next two ports; port 0: any free "
        f"ones) or ipc://PATH. Default: {_ASKED}, {DEFAULT_ADDRESS}.",
        "--bind",
        "--address",
    ),
    "concurrency": _setting("N", "Slots; default: one per CPU.", "--concurrency", "-c"),
    "mode": _setting("MODE", "process, or async or thread for tasks that wait: slots share processes then."),
    "processes": _setting("N", "Processes that slots share with --mode async or thread; default: 1."),
    "queues": _setting("A,B", "Queues that the pool serves."),
    "tags": _setting("A,B", "Tags of the pool; tasks may require tags."),
    "grace": _setting("SECONDS", "Time for running tasks to finish when the pool drains; default: 30."),
    "only_registered": _setting(
        "MODULE...", "Run functions of these modules and packages by name, and no others; import them too."
    ),
    "slot_user": _setting("NAME", "As root: run tasks as this user, who cannot read this program's keys."),
    "middleware": _setting(
        "MODULE:NAME",
        "Code around tasks: an object or class with hooks. May be given several times.",
        "--use",
    ),
    "http": _setting("HOST:PORT", "Side port for probes and metrics; default: none."),
    "http_token_file": _setting("FILE", "The token of the side port; required beyond loopback."),
    "keys": _setting(
        "DIR", "The directory of this program's keys. Default: TASKMESH_KEYS, the configuration's, or none."
    ),
    "lanes": _setting(
        "FIRST-LAST", "Ports for the lanes of pools. Default: any on loopback, 5600-6799 elsewhere."
    ),
    "journal": _setting(
        "FILE|URL",
        "Where accepted tasks outlive the hub and its clients: a file, or redis://HOST:PORT/DB. "
        "Default: TASKMESH_JOURNAL, the configuration's, or none.",
    ),
    "journal_file": _setting("FILE", "A file with the journal's URL, if it has a password."),
    "strict": typer.Option(
        None,
        "--strict",
        help="A task is accepted when the journal is on disk: power loss takes none.",
    ),
    "config": _setting("FILE", "Settings, in place of taskmesh.toml or pyproject.toml."),
}
"""Settings that are options, by the setting's name; and `config`, where settings are read from."""
KINDS = {"strict": bool, "only_registered": list[str] | None, "middleware": list[str] | None}
"""The types of options that are no text; the configuration reads texts."""


def known_id(given: Any) -> Any:
    """Return the ids that are given, one or several; refuse a text that is none."""
    try:
        for text in [given] if isinstance(given, str) else given or ():
            parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return given


TaskId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The task's id, as `taskmesh tasks` shows it.", callback=known_id),
]


def settings(given: dict[str, Any]) -> Config:
    """Return all settings; the options that were `given` (neither None nor empty) go before all others.

    Those of a command that has a hub's address have one.

    Raises:
        ConfigError: one is unknown or wrong.
    """
    from taskmesh.config import load

    found = {"address" if name == "bind" else name: value or None for name, value in given.items()}
    file = found.pop("config")
    config = load(
        file, {name: value for name, value in found.items() if value is not None}, command_line=True
    )
    if "address" not in found:
        return config
    return replace(config, mesh=replace(config.mesh, address=config.mesh.address or DEFAULT_ADDRESS))


@dataclass(frozen=True, slots=True)
class Reach:
    """The hub of a command, and how long to wait for its answer.

    Attributes:
        config: the settings, with the hub's address: as given, as configured, or the default.
        timeout: seconds to wait for an answer.
    """

    config: Config
    timeout: float

    @contextlib.contextmanager
    def session(self) -> Iterator[SubmitPort]:
        """Open a session with the hub.

        Raises:
            HubUnreachable: it does not answer in time, or does not let us in.
            ConfigError: the address cannot be used, or keys are missing.
        """
        from taskmesh.client.port.remote_port import operator_session

        with operator_session(self.config, self.timeout) as port:
            yield port

    def query(self, what: str, argument: str = "", limit: int = EVERYTHING) -> Any:
        """Return a view of the hub.

        Raises:
            TaskMeshError: it has no such thing. Else as `session`.
        """
        with self.session() as hub:
            return hub.query(what, argument, limit, self.timeout)

    def command(self, verb: str, target: str) -> Any:
        """Have the hub carry a command out; return its answer.

        Raises:
            TaskMeshError: it refuses. Else as `session`.
        """
        with self.session() as hub:
            return hub.command(verb, target, self.timeout)


def command(
    *names: str, subject: Callable[..., object] | None = None, timeout: float = 0.0, lasting: bool = False
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of these settings, --config and --json.

    The command takes its subject and its output as its first two parameters. A parameter whose type is a
    dataclass becomes an option for each field. Errors become exit codes.

    Args:
        names: the names of the settings, see OPTIONS.
        subject: makes the subject of all settings; without it these are the subject.
        timeout: the default of --timeout, which `subject` takes too; 0 for a command without it.
        lasting: the command is a program that runs until it is stopped, see `exits`.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(name, keyword, default=OPTIONS[name], annotation=KINDS.get(name, _TEXT))
        for name in (*names, "config")
    ]
    text = "How long to wait for an answer."
    wait = typer.Option(timeout, "--timeout", metavar="SECONDS", min=0.01, max=LONGEST_ANSWER, help=text)
    waits = [inspect.Parameter("timeout", keyword, default=wait, annotation=float)] if timeout else []
    json_option = typer.Option(False, "--json", envvar="TASKMESH_JSON", help="Print JSON, for programs.")
    json = inspect.Parameter("json", keyword, default=json_option, annotation=bool)

    def decorated(run: Command) -> Command:
        own, grouped = _parameters(run)

        @functools.wraps(run)
        def whole(*, json: bool, **given: Any) -> None:
            out = Output(as_json=json, is_log=lasting)
            with exits(out), whole_lines(out) if lasting else contextlib.nullcontext():
                config = settings({each.name: given.pop(each.name) for each in shared})
                about = (config, *(given.pop(each.name) for each in waits))
                for name, kind in grouped.items():
                    given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
                run(subject(*about) if subject else config, out, **given)

        options = [*own, *shared, *waits, json]
        whole.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        whole.__annotations__ = {option.name: option.annotation for option in options}
        return whole

    return decorated


def _parameters(run: Command) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """Return the parameters of a command behind its first two, and the types of those that are dataclasses.

    Such a one is replaced by its fields.
    """
    found: list[inspect.Parameter] = []
    grouped: dict[str, Any] = {}
    for each in list(inspect.signature(run).parameters.values())[2:]:
        kind = eval(each.annotation, run.__globals__)  # noqa: S307  our own
        if not is_dataclass(kind):
            found.append(each.replace(annotation=kind))
            continue
        grouped[each.name] = kind
        types = get_type_hints(kind, include_extras=True)
        found += [
            inspect.Parameter(
                field.name, each.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
            )
            for field in fields(kind)
        ]
    return found, grouped


ADVANCED = frozenset(
    {
        *("after", "at", "delay", "grace", "hard_timeout", "http_token_file", "journal_file", "keep", "key"),
        *(
            "gpus",
            "gpus_per_slot",
            "max_age_per_child",
            "max_memory_per_child",
            "max_tasks_per_child",
            "mode",
            "processes",
            "watch",
        ),
        *("lanes", "log_level", "middleware", "only_registered", "priority", "slot_user", "strict"),
    }
)
"""The options that the first day does not need: help pages have them in a box of their own, below others."""


class PlainCommand(TyperCommand):
    """A command on whose help page flags are flags, and advanced options stand below the others."""

    def get_params(self, ctx: Any) -> Any:
        return as_shown(super().get_params(ctx))


def as_shown(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command as help pages show them: no `<bool>` behind flags, two boxes."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
        if each.name in ADVANCED:
            each.rich_help_panel = "Advanced options"
    return parameters


hub_command = command("address", "keys", subject=Reach, timeout=5.0)
"""The decorator of commands that ask a hub: they take a Reach first."""


@contextlib.contextmanager
def exits(out: Output) -> Iterator[None]:
    """Turn the errors of a command into a message and its exit code.

    An unforeseen error has its traceback in Python's development mode (PYTHONDEVMODE=1), and of a program
    that runs: it may not fail in the same way again.
    """
    try:
        yield
    except ConfigError as error:
        raise _ended(out, error, USAGE) from None
    except HubUnreachable as error:
        raise _ended(out, error, NO_HUB) from None
    except TaskMeshError as error:
        # A socket's errors are ValueErrors when an endpoint cannot be had: then the address was a bad choice.
        raise _ended(out, error, USAGE if isinstance(error, ValueError) else FAILED) from None
    except Unprintable as error:
        out.text(f"taskmesh: {error}")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, BrokenPipeError):  # a deliberate end, or the reader has closed the pipe
        raise
    except Exception as error:  # noqa: BLE001  it is printed
        trace = traceback.format_exc() if out.is_log or sys.flags.dev_mode else ""
        unforeseen = TaskMeshError(f"error: {type(error).__name__}: {rendered(error, str)}")
        out.error(error if out.as_json else unforeseen, {"traceback": trace} if trace else None)
        if trace and not out.as_json:
            out.text(trace)
        raise typer.Exit(FAILED) from None


def _ended(out: Output, error: BaseException, code: int) -> typer.Exit:
    out.error(error)
    return typer.Exit(code)


def unprinted(error: OSError) -> int:
    """Report that help, or an error of the command line, cannot be printed; return the exit code.

    An error that cannot be printed keeps its own code.
    """
    own = getattr(error.__context__, "exit_code", None)  # a usage error has one
    if isinstance(own, int):
        return own
    Output(as_json=False).text(f"taskmesh: this cannot be printed on stdout: {error}")
    return FAILED
