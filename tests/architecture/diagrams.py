"""Diagrams and tables of docs/architecture.md that are drawn from the code; `make diagrams` writes them."""

import ast
import inspect
import re
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
from taskmesh.hub.machine.ventilator import ALONE, RECALL_AFTER
from taskmesh.link.link import ACK_DELAY, SLOWEST
from taskmesh.pool.machine.membership import FIRST_WAIT
from taskmesh.pool.machine.permits import SPARE_FOR
from taskmesh.pool.machine.scheduler import STEAL_AFTER, UNSTICK_AFTER
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.machine.slots import SLOT_TRANSITIONS, SlotCause, SlotState
from taskmesh.pool.machine.spool import MAX_REPEATS, RESEND_BEATS
from taskmesh.pool.slots.result_batch import FLUSH_AFTER
from tests.architecture.source import ROOT

PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- drawn: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Table = Mapping[tuple[Any, Any], Any]

HUB, POOL, CLIENT = HubSettings(epoch=1), PoolSettings("p", 1, 1), ClientSettings(1)
TIMES: tuple[tuple[str, float, str], ...] = (
    ("beat", HUB.beat, "between two beats of a pool, and of a client"),
    (
        "FEW_POOLS",
        FEW_POOLS,
        "pools beyond which one that comes beats more rarely, in proportion; a lease has four beats",
    ),
    ("silent_beats", HUB.silent_beats, "beats without a word after which a pool gets no new work"),
    ("links_grace", HUB.links_grace, "for a pool whose links have closed to say Hello"),
    ("lease", HUB.lease, "of silence after which a pool's work goes to others; also the longest recovery"),
    ("patience_beats", POOL.patience_beats, "beats without an answer after which a pool says Hello again"),
    ("hello (pool)", POOL.hello, "between two Hellos, the first ones sooner (0.2 at most over sockets)"),
    ("FIRST_WAIT", FIRST_WAIT, "before the first Hello is repeated, doubled each time"),
    ("RESEND_BEATS", RESEND_BEATS, "beats after which a pool repeats Results, doubled each time"),
    ("MAX_REPEATS", MAX_REPEATS, "such repetitions before the pool asks for a new session"),
    ("grace", POOL.grace, "for running tasks when their pool drains"),
    ("restart", POOL.restart, "before a slot that did not come up is started again, doubled each time"),
    ("max_restart", POOL.max_restart, "at most between two such starts"),
    ("client_grace", HUB.client_grace, "of silence after which a client counts as away"),
    ("client_silence", HUB.client_silence, "after which it is lost, although its link stands"),
    ("result_ttl", HUB.result_ttl, "for which the outcomes of a client that is away are kept"),
    ("hello (client)", CLIENT.hello, "between two Hellos of a client"),
    ("patience (client)", CLIENT.patience, "of the hub's silence after which a client dials again"),
    ("resend (client)", CLIENT.resend, "after which a client repeats unacknowledged Submits"),
    ("RESEND_AFTER", RESEND_AFTER, "after which the hub repeats unacknowledged Delivers"),
    ("ACK_DELAY", ACK_DELAY, "that an acknowledgement waits for a message to go with, both ways"),
    ("RETRY_BUSY", RETRY_BUSY, "before a Submit that a full hub has refused comes again, at first"),
    ("LONGEST_BACKOFF", LONGEST_BACKOFF, "the same, at most"),
    ("LANE_HORIZON", LANE_HORIZON, "of work that the hub gives each slot ahead, at least"),
    ("SLOT_HORIZON", SLOT_HORIZON, "of work that a pool hands each slot ahead, at least"),
    ("LONG", LONG, "from which on a task is never handed out ahead"),
    ("SILENCE", SILENCE, "without a result after which a full lane gets nothing more"),
    ("RECALL_AFTER", RECALL_AFTER, "of a lane's silence before it is recalled for an idle lane"),
    ("OVERDUE", OVERDUE, "after which work that was sent ahead and has not started is recalled"),
    ("STEAL_AFTER", STEAL_AFTER, "of a slot's silence before it is recalled for an idle slot"),
    ("UNSTICK_AFTER", UNSTICK_AFTER, "the same while no slot is idle"),
    ("FLUSH_AFTER", FLUSH_AFTER, "after which a slot sends its results although more tasks wait"),
    ("SPARE_FOR", SPARE_FOR, "for which a slot without a permit is kept"),
    ("ALONE", ALONE, "for which a lane is kept empty for a suspect"),
    ("SLOWEST", SLOWEST, "bytes a second: large messages are waited for as if links had these"),
)


def diagram(table: Table, start: Enum) -> list[str]:
    """Draw a table of (state, cause) -> state: one arrow for each pair of states, with its causes."""
    arrows: dict[tuple[Enum, Enum], list[str]] = {}
    for (before, cause), after in table.items():
        if before is not after:
            arrows.setdefault((before, after), []).append(cause.name)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.name}"]
    lines += [
        f"    {before.name} --> {after.name}: {', '.join(causes)}"
        for (before, after), causes in arrows.items()
    ]
    return [*lines, "```"]


def causes(kind: type[Enum], table: Table) -> list[str]:
    """List what each cause means, as its docstring says, and which states it leads from and to."""
    lines = ["", "| cause | what has happened | from | to |", "|---|---|---|---|"]
    for cause, meaning in meanings(kind).items():
        moves = {before: after for (before, found), after in table.items() if found is kind[cause]}
        before = ", ".join(state.name for state in moves)
        after = ", ".join(dict.fromkeys(state.name for state in moves.values()))
        lines.append(f"| {cause} | {meaning} | {before} | {after} |")
    return lines


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
    """List the constants that the machines keep time by."""
    lines = ["| constant | value | seconds, unless it says otherwise |", "|---|---|---|"]
    return lines + [f"| {name} | {value:g} | {meaning} |" for name, value, meaning in TIMES]


def layers() -> list[str]:
    """List the rows of the contract of import-linter, the top first; `name/` is a package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    lines = ["```"]
    for row in rows:
        names = re.findall(r"[\w.]+", row)
        shown = (
            f"{name}/" if (ROOT / "taskmesh" / name.replace(".", "/")).is_dir() else name for name in names
        )
        lines.append((" | " if "|" in row else "  ").join(shown))
    return [*lines, "```"]


def drawings() -> dict[str, list[str]]:
    """Draw every block of the page, by name."""
    return {
        "tasks": diagram(TRANSITIONS, State.QUEUED) + causes(Cause, TRANSITIONS),
        "lanes": diagram(LANE_TRANSITIONS, LaneState.OPENING) + causes(LaneCause, LANE_TRANSITIONS),
        "slots": diagram(SLOT_TRANSITIONS, SlotState.DOWN) + causes(SlotCause, SLOT_TRANSITIONS),
        "times": times(),
        "layers": layers(),
    }


def drawn(page: str) -> str:
    """Return the page with each block drawn anew."""
    blocks = {name: "\n".join(lines) for name, lines in drawings().items()}
    return BLOCK.sub(lambda found: f"{found[1]}{blocks[found[2]]}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
