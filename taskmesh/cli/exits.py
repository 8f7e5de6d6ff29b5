"""Exit codes, and which error ends a command with which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from taskmesh.cli.output import Output, Unprintable
from taskmesh.errors import ConfigError, HubUnreachable, TaskMeshError

OK, FAILED, USAGE, NO_HUB, TOO_LATE, INTERRUPTED = 0, 1, 2, 3, 4, 130

EPILOG = (
    "Exit codes: 0 done; 1 the task failed, or the hub refused; 2 wrong usage or configuration "
    "(an address that may not be used or is taken, a module that cannot be imported); 3 no hub answered; "
    "4 not finished within --timeout; 130 interrupted."
)


@contextmanager
def exits(out: Output) -> Iterator[None]:
    """Turns the errors of a command into a message and its exit code."""
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


def _ended(out: Output, error: BaseException, code: int) -> typer.Exit:
    out.error(error)
    return typer.Exit(code)
