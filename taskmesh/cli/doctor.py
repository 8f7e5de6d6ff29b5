"""`taskmesh doctor`: checks of this machine, its settings and the hub, each with its cure."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, cast

import typer

from taskmesh.cli.command import FAILED, Reach, hub_command
from taskmesh.cli.output import Output
from taskmesh.errors import TaskMeshError
from taskmesh.messages.status import HubStatus

FEWEST_FILES: Final = 1024
ENOUGH_FILES: Final = 65_536
SLOT_S: Final = 10.0
"""Seconds in which a slot has to run a task."""


@dataclass(slots=True)
class Checkup:
    """One look at everything.

    Attributes:
        reach: the hub, and the settings.
        queue: the queue of a task that is to run.
        tags: tags that it requires.
        status: the hub's status, once it has answered.
    """

    reach: Reach
    queue: str
    tags: frozenset[str]
    status: HubStatus | None = None

    def python(self) -> str:
        """Name the versions that have to agree between programs of a mesh."""
        from importlib.metadata import version

        packages = ", ".join(f"{name} {version(name)}" for name in ("pyzmq", "msgspec", "cloudpickle"))
        return f"taskmesh {version('taskmesh')}, Python {platform.python_version()}, {packages}"

    def files(self) -> str:
        """Look whether enough files may be open, and be memory."""
        from taskmesh.shm.files import anonymous_file
        from taskmesh.system.process import raise_file_limit

        most = raise_file_limit()
        if most < FEWEST_FILES:
            raise TaskMeshError(f"{most} open files are few: raise the limit (ulimit -Hn {ENOUGH_FILES})")
        fd = anonymous_file("taskmesh-doctor", 1 << 20)
        try:
            os.truncate(fd, 1 << 20)
        except OSError as error:
            cure = "raise `ulimit -f`, or the memory of the container"
            raise TaskMeshError(f"large values cannot be kept in memory files: {error}; {cure}") from None
        finally:
            os.close(fd)
        return f"{most:,} files may be open, and memory files work"

    def keys(self) -> str:
        """Look at the keys that the settings name."""
        from taskmesh.security.keys import OPERATOR, credentials_of

        folder = self.reach.config.mesh.keys
        if not folder:
            return "none: only hubs on this machine can be reached"
        credentials_of(folder, OPERATOR)
        return f"{folder} has an operator's key and the hub's"

    def slot(self) -> str:
        """Run a task in a slot of this machine."""
        from taskmesh import Mesh

        began = time.monotonic()
        try:
            with Mesh(workers=1) as mesh:
                mesh.submit(abs, -1).result(SLOT_S)
        except TimeoutError:
            raise TaskMeshError(
                f"no slot here has run a task within {SLOT_S:g} s: start `taskmesh worker`, which says why"
            ) from None
        return f"a slot has run a task {time.monotonic() - began:.1f} s after its start"

    def journal(self) -> str:
        """Look at the journal that the settings name."""
        from taskmesh.cli.store import contents, store_of
        from taskmesh.hub.journal.store import JournalUnavailable

        hub = self.reach.config.hub
        if not hub.journal and not hub.journal_file:
            return "none: tasks do not outlive hub and program together"
        store = store_of(self.reach.config)
        try:
            store.status()
            return f"it can be read; {contents(store)['tasks']:,} tasks in it are not over"
        except JournalUnavailable as error:
            raise TaskMeshError(f"it cannot be used: {error}") from None
        finally:
            store.close()

    def hub(self) -> str:
        """Ask the hub for its status."""
        with self.reach.session() as hub:
            hub.query("pools", timeout=self.reach.timeout)  # the first answer takes a handshake
            began = time.monotonic()
            self.status = status = cast(HubStatus, hub.query("status", timeout=self.reach.timeout))
            seconds = time.monotonic() - began
        pools = status["pools"]
        slots = sum(pool["slots"] for pool in pools)
        return f"it has answered in {1000 * seconds:.1f} ms; {len(pools)} pools with {slots} slots"

    def mesh(self, status: HubStatus) -> str:
        """Tell what the hub says is wrong."""
        if status["verdicts"]:
            raise TaskMeshError("\n".join(status["verdicts"]))
        return "the hub knows of nothing that is wrong"

    def task(self, status: HubStatus) -> str:
        """Look whether a task for the queue with the tags would run."""
        from taskmesh.hub.machine.views import queue_views

        serving = [
            (pool["pool"], pool["state"])
            for pool in status["pools"]
            if self.queue in pool["queues"] and self.tags <= set(pool["tags"])
        ]
        wanted = queue_views.wanted(self.queue, self.tags)
        refusal = queue_views.refusal(self.queue, self.tags, serving)
        if refusal:
            raise TaskMeshError(f"{wanted}: {refusal}")
        ready = [pool for pool, state in serving if state == "ready"]
        return f"one for {wanted} would run at {', '.join(ready[:5])}"

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks by name, in the order in which they are made; the last two if the hub answers."""
        for name in ("python", "files", "keys", "slot", "journal", "hub"):
            yield name, getattr(self, name)
        if self.status:
            yield "mesh", partial(self.mesh, self.status)
            yield "task", partial(self.task, self.status)


@hub_command
def doctor(
    reach: Reach,
    out: Output,
    *,
    queue: Annotated[str, typer.Option(metavar="NAME", help="Would a task for this queue run?")] = "default",
    tags: Annotated[str, typer.Option(metavar="A,B", help="Tags that its pool must have.")] = "",
) -> None:
    """Check this machine, the settings, the keys, the journal and the hub, and say what to do.

    Exit code 0: all is well; 1: something is not.

    Example:
        taskmesh doctor --queue gpu
    """
    checkup = Checkup(reach, queue, frozenset(filter(None, tags.split(","))))
    failed = False
    for name, check in checkup.checks():
        try:
            ok, text = True, check()
        except (TaskMeshError, OSError) as error:
            ok, text = False, str(error)
            failed = True
        for line in text.splitlines():
            out.value({"check": name, "ok": ok, "text": line}, report)
    if failed:
        raise typer.Exit(FAILED)


def report(found: dict[str, Any]) -> str:
    """Return a finding, for people."""
    return f"{'ok ' if found['ok'] else 'BAD'} {found['check'] + ':':8} {found['text']}"
