"""The command line of `taskmesh worker`, and the settings that follow from it, files and environment."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskmesh.cli.event_log import LEVELS

if TYPE_CHECKING:
    from taskmesh.config import Config

DEFAULT_ADDRESS = "tcp://127.0.0.1:5550"

LONGEST_STAY = 86_400
"""Seconds."""

EPILOG = """\
Every setting can also stand in taskmesh.toml, in [tool.taskmesh] of pyproject.toml, or in the environment
(TASKMESH_ADDRESS, TASKMESH_CONCURRENCY, TASKMESH_POOL__QUEUES, ...); the command line wins.

The current directory is on the module search path of the tasks. SIGTERM, Ctrl-C or a terminal that closes
drains: tasks that have not started go back to the hub uncharged, running ones have --grace seconds. A second
SIGTERM or Ctrl-C ends it at once.

exit codes:
  0  drained
  1  the hub refuses this worker, no slot could be started within a minute, or a second signal cut the
     drain short
  2  wrong usage or configuration: an address that may not be used, a module that cannot be imported
"""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line of a worker.

    Attributes:
        config: the settings.
        name: the pool's name; "" for a generated one.
        modules: the modules that slots import first.
        json: print JSON.
        stay: seconds that the worker waits for a signal after a drain that no signal asked for.
        log_level: the lowest level of the log.
    """

    config: Config
    name: str
    modules: tuple[str, ...]
    json: bool
    stay: float
    log_level: str = "info"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The hub's gateway; further ones are tried in turn when it does not answer."""
        return self.config.mesh.address or (DEFAULT_ADDRESS,)


def seconds(text: str) -> float:
    """A time as the command line has it.

    Raises:
        ArgumentTypeError: it is no time.
    """
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= LONGEST_STAY:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to {LONGEST_STAY}")
    return found


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    made = argparse.ArgumentParser(
        prog="taskmesh worker",
        description="Run a pool of slots that takes tasks from a hub, until it is told to stop.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("modules", nargs="*", metavar="MODULE", help="import this module in every slot when it starts")
    add(
        "--address",
        action="append",
        metavar="ENDPOINT",
        help=f"the hub's gateway, default {DEFAULT_ADDRESS}; may be repeated, and is then tried in order",
    )
    add("--concurrency", "-c", metavar="N", help="slots: tasks at a time; 0 (default): one per CPU")
    add("--queues", metavar="A,B", help="queues that the pool serves (default: default)")
    add("--tags", metavar="A,B", help="tags of the pool; tasks may require tags")
    add("--name", default="", help="the pool's name, unique in the mesh (default: one made from the host's)")
    add(
        "--grace",
        metavar="SECONDS",
        help="time for running tasks to finish when the pool drains (default: 30)",
    )
    add("--http", metavar="HOST:PORT", help="side port for probes, metrics and POST /drain (default: none)")
    add("--http-token-file", metavar="FILE", help="the token of the side port; required beyond loopback")
    add(
        "--only-registered",
        nargs="+",
        metavar="MODULE",
        help="run functions of these modules (and packages) by name, and no others; import them, too",
    )
    add("--keys", metavar="DIR", help="the directory of the worker's keys (default: TASKMESH_KEYS, or none)")
    add(
        "--stay",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="after a drain that no signal asked for, wait this long for a signal before ending, so that "
        "Kubernetes does not restart the container at once (default: 0)",
    )
    add(
        "--log-level",
        choices=LEVELS,
        default="info",
        help="the lowest level that is logged; debug adds the tracebacks of tasks that fail",
    )
    add("--config", metavar="FILE", help="settings, in place of taskmesh.toml or pyproject.toml")
    add("--json", action="store_true", help="log events as JSON, one object a line")
    return made


def read(line: Sequence[str]) -> Arguments:
    """Read the command line and every other source of settings.

    Raises:
        ConfigError: a setting is unknown or wrong.
        SystemExit: the line is not understood (status 2), or asks for help (status 0).
    """
    given = parser().parse_intermixed_args(line)
    wanted = {
        "mesh__address": given.address,
        "pool__concurrency": given.concurrency,
        "pool__queues": given.queues,
        "pool__tags": given.tags,
        "pool__grace": given.grace,
        "program__http": given.http,
        "program__http_token_file": given.http_token_file,
        "mesh__keys": given.keys,
        "pool__only_registered": given.only_registered,
    }
    found = {key: value for key, value in wanted.items() if value is not None}
    from taskmesh.config import load  # it brings msgspec, which a line that is refused needs not wait for

    config = load(given.config, found, command_line=True)
    return Arguments(config, given.name, tuple(given.modules), given.json, given.stay, given.log_level)
