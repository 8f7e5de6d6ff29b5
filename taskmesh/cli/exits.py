"""Exit codes, and which error ends a command with which."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from taskmesh.cli.format import rendered
from taskmesh.cli.output import Output, Unprintable
from taskmesh.errors import ConfigError, HubUnreachable, TaskMeshError

OK, FAILED, USAGE, NO_HUB, TOO_LATE, INTERRUPTED = 0, 1, 2, 3, 4, 130

EPILOG = "Exit codes: `taskmesh --help` lists them."
EXIT_CODES = (
    "Exit codes: 0 done; 1 the task failed, the hub refused what was asked, or the command itself failed; "
    "2 wrong usage or configuration (an address that may not be used or is taken, a module that cannot be "
    "imported); 3 no hub answered, or none let us in (keys); 4 not finished within --timeout or --wait; "
    "130 interrupted."
)


@contextmanager
def exits(out: Output, *, lasting: bool = False) -> Iterator[None]:
    """Turn the errors of a command into a message and its exit code.

    An unforeseen error is one line too, but for its traceback in Python's development mode
    (PYTHONDEVMODE=1), and of a `lasting` program: it may not fail in the same way again.
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
        if lasting or sys.flags.dev_mode:
            out.text(traceback.format_exc())
            raise typer.Exit(FAILED) from None
        unforeseen = TaskMeshError(f"error: {type(error).__name__}: {rendered(error, str)}")
        raise _ended(out, unforeseen if not out.as_json else error, FAILED) from None


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
