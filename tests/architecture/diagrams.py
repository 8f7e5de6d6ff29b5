"""Tables of docs/explanation/architecture.md that are drawn from the code; `make diagrams` writes them."""

import ast
import inspect
import re
import textwrap
import tomllib
from collections.abc import Mapping
from enum import Enum
from typing import Any

from taskmesh.client.machine.machine import LONGEST_BACKOFF
from taskmesh.client.machine.settings import ClientSettings
from taskmesh.core.credit import LANE_HORIZON, LONG, SLOT_HORIZON
from taskmesh.hub.machine.books.client_session import RESEND_AFTER
from taskmesh.hub.machine.books.lanes import LANE_TRANSITIONS, OVERDUE, SILENCE, LaneCause, LaneState
from taskmesh.hub.machine.books.states import TRANSITIONS, Cause, State
from taskmesh.hub.machine.settings import FEW_POOLS, HubSettings
from taskmesh.hub.machine.submission import RETRY_BUSY
from taskmesh.hub.machine.ventilator import RECALL_AFTER
from taskmesh.link.link import SLOWEST
from taskmesh.pool.machine.membership import FIRST_WAIT
from taskmesh.pool.machine.permits import SPARE_FOR
from taskmesh.pool.machine.scheduler import STEAL_AFTER, UNSTICK_AFTER
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.machine.slots import SLOT_TRANSITIONS, SlotCause, SlotState
from taskmesh.pool.machine.spool import MAX_REPEATS, RESEND_BEATS
from tests.architecture.source import ROOT

PAGE = ROOT / "docs/explanation/architecture.md"
BLOCK = re.compile(r"(<!-- drawn: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Table = Mapping[tuple[Any, Any], Any]

HUB, POOL, CLIENT = HubSettings(epoch=1), PoolSettings("p", 1, 1), ClientSettings(1)
VALUES: dict[str, float] = {
    "beat": HUB.beat,
    "FEW_POOLS": FEW_POOLS,
    "silent_beats": HUB.silent_beats,
    "lease": HUB.lease,
    "links_grace": HUB.links_grace,
    "patience_beats": POOL.patience_beats,
    "FIRST_WAIT": FIRST_WAIT,
    "PoolSettings.hello": POOL.hello,
    "RESEND_BEATS": RESEND_BEATS,
    "MAX_REPEATS": MAX_REPEATS,
    "grace": POOL.grace,
    "restart": POOL.restart,
    "max_restart": POOL.max_restart,
    "client_grace": HUB.client_grace,
    "client_silence": HUB.client_silence,
    "result_ttl": HUB.result_ttl,
    "patience": CLIENT.patience,
    "ClientSettings.hello": CLIENT.hello,
    "resend": CLIENT.resend,
    "RESEND_AFTER": RESEND_AFTER,
    "SLOWEST": SLOWEST,
    "RETRY_BUSY": RETRY_BUSY,
    "LONGEST_BACKOFF": LONGEST_BACKOFF,
    "LANE_HORIZON": LANE_HORIZON,
    "SLOT_HORIZON": SLOT_HORIZON,
    "LONG": LONG,
    "RECALL_AFTER": RECALL_AFTER,
    "SILENCE": SILENCE,
    "OVERDUE": OVERDUE,
    "STEAL_AFTER": STEAL_AFTER,
    "UNSTICK_AFTER": UNSTICK_AFTER,
    "SPARE_FOR": SPARE_FOR,
}
TIMES = """\
a pool beats | each `beat`; less often, in proportion, if it comes when there are `FEW_POOLS`; \
four times a lease at least
a pool is silent | after `silent_beats` beats it gets no new work, after `lease` its work goes to others
a pool leaves | when its links close, it has `links_grace` to say Hello; \
when it drains, its running tasks have `grace`
a pool hears nothing | Hello after `patience_beats` beats, again after `FIRST_WAIT`, doubled to \
`PoolSettings.hello` (sockets: 0.2)
Results get no answer | they come again after `RESEND_BEATS` beats, doubled each time; \
after `MAX_REPEATS` of these the pool says Hello
a slot does not come up | it starts again after `restart`, doubled to `max_restart`; \
one without a permit is kept for `SPARE_FOR`
a client is silent | after `client_grace` it is away, after `client_silence` lost; \
its outcomes are kept for `result_ttl`
a client gets no answer | it dials again after `patience`, and says Hello each `ClientSettings.hello`
Submits, Delivers get none | they are repeated after `resend`, `RESEND_AFTER`; \
large ones later, at `SLOWEST` bytes a second
a full hub refuses a Submit | it comes again after `RETRY_BUSY` at first, after `LONGEST_BACKOFF` at most
work is sent ahead | the hub gives each slot `LANE_HORIZON` of it, a pool `SLOT_HORIZON`, at least; \
but no task of `LONG`
a lane is stuck | `RECALL_AFTER`: an idle lane gets its tasks; `SILENCE`: no more if full; \
`OVERDUE`: unstarted tasks return
a slot is stuck | its tasks return after `STEAL_AFTER`, or `UNSTICK_AFTER` if no slot is idle
"""
"""Rows of the table of times: an event, and the constants by which machines time it."""


def causes(title: str, start: Enum, kind: type[Enum], table: Table) -> list[str]:
    """List what each cause means, as its docstring says, and which states it leads from and to."""
    lines = [f"| **{title}** | begins as {start.name} | | |"]
    for cause, meaning in meanings(kind).items():
        moves = {before: after for (before, found), after in table.items() if found is kind[cause]}
        before = ", ".join(state.name for state in moves)
        after = ", ".join(dict.fromkeys(state.name for state in moves.values()))
        lines.append(f"| {cause} | {meaning} | {before} | {after} |")
    return lines


def states() -> list[str]:
    """List all transitions of tasks, lanes and slots in one table."""
    return [
        "| cause | what has happened | from | to |",
        "|---|---|---|---|",
        *causes("a task", State.QUEUED, Cause, TRANSITIONS),
        *causes("a lane", LaneState.OPENING, LaneCause, LANE_TRANSITIONS),
        *causes("a slot", SlotState.DOWN, SlotCause, SLOT_TRANSITIONS),
    ]


def meanings(kind: type[Enum]) -> dict[str, str]:
    """Read the docstring below each member of an enum; a member without one is a mistake."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for node, below in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in kind.__members__:
                assert isinstance(below, ast.Expr), f"{kind.__name__}.{name} has no docstring"
                assert isinstance(below.value, ast.Constant), f"{kind.__name__}.{name} has no docstring"
                found[name] = " ".join(str(below.value.value).split())
    return found


def times() -> list[str]:
    """List the constants that the machines keep time by; each of them stands in exactly one row."""
    assert sorted(re.findall(r"`(.+?)`", TIMES)) == sorted(VALUES)
    rows = re.sub(r"`(.+?)`", lambda found: f"`{found[1]}` = {VALUES[found[1]]:g}", TIMES.strip())
    lines = ["| when | seconds, unless it says otherwise |", "|---|---|"]
    return lines + [f"| {row} |" for row in rows.splitlines()]


def layers() -> list[str]:
    """List the rows of the contract of import-linter, the top first; `name/` is a package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    lines = []
    for row in rows:
        names = re.findall(r"[\w.]+", row)
        shown = (
            f"{name}/" if (ROOT / "taskmesh" / name.replace(".", "/")).is_dir() else name for name in names
        )
        lines.append((" | " if "|" in row else ", ").join(shown))
    return ["```", *textwrap.wrap(" > ".join(lines), 120), "```"]


def drawings() -> dict[str, list[str]]:
    """Draw every block of the page, by name."""
    return {
        "states": states(),
        "times": times(),
        "layers": layers(),
    }


def drawn(page: str) -> str:
    """Return the page with each block drawn anew."""
    blocks = {name: "\n".join(lines) for name, lines in drawings().items()}
    return BLOCK.sub(lambda found: f"{found[1]}{blocks[found[2]]}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
