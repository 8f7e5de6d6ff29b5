"""`taskmesh status`, `tasks` and `explain`: the views of a hub."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from time import time
from typing import Annotated, Any

import typer

from taskmesh.cli.command import EVERYTHING, Reach, TaskId, hub_command
from taskmesh.cli.output import Output, encoded, time_of_day
from taskmesh.hub.machine.views.quantities import Bytes, duration
from taskmesh.messages.status import FunctionStatus, HubStatus, JournalStatus, Quantiles, SinkStatus

MOST_LINES = 1_000
SHOWN_FUNCTIONS = 10
AGAIN_S = 0.2
COLUMNS = ("task_id", "state", "name", "queue", "attempt", "pool", "seconds")


@hub_command
def status(reach: Reach, out: Output) -> None:
    """Show the number of tasks in each state, and the pools and clients.

    Example:
        taskmesh status --json
    """
    out.value(reach.query("status"), summary)


class ListedState(enum.StrEnum):
    """The states by which tasks are listed; of those that have ended, the latest."""

    queued = "queued"
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"


@hub_command
def tasks(
    reach: Reach,
    out: Output,
    *,
    state: Annotated[
        ListedState | None,
        typer.Option(help="Only those in this state; of those that have ended, the latest."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most this many tasks.")] = 100,
) -> None:
    """List tasks that have not ended, or the latest that have.

    Example:
        taskmesh tasks --state running --limit 20
    """
    from taskmesh.hub.machine.views.views import MOST_ROWS

    rows = reach.query("tasks", state.value if state else "", limit + 1)
    out.rows(rows[:limit], COLUMNS, f"no task is {state or 'on its way'}")
    if len(rows) > limit and not out.as_json:
        out.text(
            f"only the first {limit}, there are more: --limit N shows up to {MOST_ROWS}, and "
            "`taskmesh status` counts all"
        )
    elif len(rows) == MOST_ROWS and not out.as_json:
        out.text(f"only the first {MOST_ROWS}, there may be more: `taskmesh status` counts all")


@hub_command
def timeline(reach: Reach, out: Output) -> None:
    """Print what ran when in which slot, as JSON for https://ui.perfetto.dev and chrome://tracing.

    It has the latest 1,000 reports of successes, what succeeded together as one bar, and 1,000 failures.

    Example:
        taskmesh timeline > ends.json
    """
    succeeded, failed = (reach.query("tasks", state) for state in ("succeeded", "failed"))
    out.value({"traceEvents": trace_events(succeeded, failed)}, encoded)


def trace_events(succeeded: list[dict[str, Any]], failed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ends of tasks in the Trace Event Format: pools are its processes, slots its threads.

    Args:
        succeeded: the latest first. A slot may report several at once: each ended before the next began.
        failed: likewise; nobody knows when they began.
    """
    pools: dict[str, int] = {}
    began: dict[str, float] = {}
    events: list[dict[str, Any]] = []
    for row in (*succeeded, *failed):
        pool, _, slot = row["worker"].partition("/")
        if pool not in pools:
            pools[pool] = len(pools) + 1
            about = {"pid": pools[pool], "args": {"name": pool}}
            events.append({"ph": "M", "name": "process_name", **about})
        args = {key: row[key] for key in ("task_id", "attempt", "state")}
        where = {"pid": pools[pool], "tid": int(slot or 0), "cat": row["queue"], "args": args}
        if "seconds" in row:
            many = f" x {row['count']}" if row["count"] > 1 else ""
            began[row["worker"]] = min(row["ended"], began.get(row["worker"], row["ended"])) - row["seconds"]
            times = {"ts": began[row["worker"]] * 1e6, "dur": row["seconds"] * 1e6}
            events.append({"ph": "X", "name": row["name"] + many, **where, **times})
        else:
            told = f"{row['name']}: {row['state']}"
            events.append({"ph": "i", "s": "t", "name": told, **where, "ts": row["ended"] * 1e6})
    return events


@hub_command
def explain(reach: Reach, out: Output, task: TaskId) -> None:
    """Explain why a task waits, which pool has it, how it has ended, and how its earlier attempts did.

    Example:
        taskmesh explain 084a60bcc72ce7810000000000000001
    """
    out.value(reach.query("task", task), explanation)


@hub_command
def events(
    reach: Reach,
    out: Output,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until you interrupt it.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Begin with so many.")] = 100,
) -> None:
    """Show what has happened lately: pools that came and went, failures, refusals, schedules.

    Example:
        taskmesh events --follow
    """
    before = 0
    for event in numbered(reach, "events", "", limit, follow=follow):
        if before and event["number"] > before + 1:
            out.text(f"{event['number'] - before - 1} events missed")
        before = event["number"]
        out.value(event, event_line)


def numbered(reach: Reach, what: str, about: str, limit: int, *, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a view that numbers them; to follow it, also those that come, while any may come.

    Args:
        reach: the hub.
        what: the view.
        about: its argument, before the number after which rows are wanted.
        limit: begin with so many.
        follow: go on.
    """
    from threading import Event

    after, pause = 0, Event()
    with reach.session() as hub:
        while True:
            found: Any = hub.query(what, f"{about}{after}", limit, reach.timeout)
            rows, more = (found, True) if isinstance(found, list) else (found["lines"], found["on_its_way"])
            for row in rows:
                after, limit = row["number"], EVERYTHING
                yield row
            if not (follow and more):
                return
            pause.wait(AGAIN_S)


def event_line(event: dict[str, Any]) -> str:
    """Return an event, for people."""
    fields = {name: value for name, value in event.items() if name not in {"number", "ago", "kind"}}
    told = " ".join(f"{name}={value}" for name, value in fields.items() if value not in ("", None))
    return f"{time_of_day(time() - event['ago'])} {event['kind']} {told}"


@hub_command
def logs(
    reach: Reach,
    out: Output,
    task: TaskId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
) -> None:
    """Show what a task has logged: the last 1,000 lines, while the hub has them.

    Example:
        taskmesh logs 084a60bcc72ce7810000000000000001 --follow
    """
    for line in numbered(reach, "logs", f"{task} ", MOST_LINES, follow=follow):
        out.value({"task_id": task, **line}, log_line)


def log_line(line: dict[str, Any]) -> str:
    """Return a line that a task has logged, for people."""
    return f"{time_of_day(line['time'])} {line['worker']} {line['level']} {line['logger']}: {line['text']}"


@hub_command
def errors(
    reach: Reach,
    out: Output,
    wanted: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Only of functions, types or places with it.")
    ] = "",
) -> None:
    """Show how tasks have failed, in groups: one function, one kind of error, one place in the code.

    Example:
        taskmesh errors ValueError
    """
    out.value(reach.query("errors", wanted), error_groups)


def error_groups(found: dict[str, Any]) -> str:
    """Return groups of errors, for people."""
    lines = []
    for group in found["groups"]:
        what = ": ".join(filter(None, (group["kind"], group["type"])))
        at = f" at {group['place']}" if group["place"] else ""
        since = f"first {time_of_day(group['first'])}, last {time_of_day(group['last'])}"
        lines.append(f"{group['count']} x {group['name']}: {what}{at} ({since})")
        lines += [
            f"  {sample['task']} attempt {sample['attempt']} on {sample['worker']}: {sample['text']}"
            for sample in group["samples"]
        ]
    if found["ungrouped"]:
        lines.append(f"{found['ungrouped']} failed attempts are left out: their groups are not kept any more")
    return "\n".join(lines) or "no task has failed since this hub has started"


def summary(found: HubStatus) -> str:
    """Return the status for people."""
    states = ", ".join(f"{count} {name}" for name, count in found["tasks"].items() if count) or "none"
    ended = [f"{count} {name}" for name, count in found["ended"].items() if count]
    ends = f" ({', '.join(ended)})" if ended else ""
    there = found["pools"]
    slots, busy = (sum(pool[key] for pool in there) for key in ("slots", "busy"))
    lines = [f"! {verdict}" for verdict in found["verdicts"]]
    lines += [
        f"tasks:    {found['accepted']} accepted, {found['finished']} finished{ends}; on their way: {states}",
        f"pools:    {len(there)}; slots: {slots}, busy: {busy}",
        f"clients:  {sum(client['present'] for client in found['clients'])}",
    ]
    if unclaimed := found["unclaimed"]:
        lines.append(
            f"unclaimed: {unclaimed} tasks that pools hold for clients that are not back with this hub"
        )
    lines += [function_line(each) for each in found["functions"][:SHOWN_FUNCTIONS]]
    lines += [sink_line(sink) for sink in found["sinks"]]
    lines += [journal_line(found["journal"])] if found["journal"] else []
    return "\n".join(lines)


def function_line(function: FunctionStatus) -> str:
    """Return how the tasks of a function fare, for people."""
    bad = [f"{function[key]} {key}" for key in ("failed", "cancelled") if function[key]]
    ends = ", ".join([f"{function['succeeded']} succeeded", *bad])
    times = [f"{what} {quantiles(function[what])}" for what in ("run", "wait") if function[what]["p50"]]
    return "; ".join([f"function {function['name']}: {ends}", *times])


def quantiles(found: Quantiles) -> str:
    """Return quantiles of times, for people."""
    return ", ".join(
        f"{share} {duration(value)}" for share, value in found.items() if isinstance(value, float)
    )


def sink_line(sink: SinkStatus) -> str:
    """Return how a sink is, for people."""
    full = "; it is full: tasks whose outcomes go there wait" if sink["full"] else ""
    return (
        f"sink {sink['sink']}: {sink['waiting']} outcomes wait, {sink['consumers']} consumers have "
        f"{sink['unacknowledged']} unacknowledged ({Bytes(sink['bytes'])} in all){full}"
    )


def journal_line(journal: JournalStatus) -> str:
    """Return how the hub's journal is, for people."""
    why = f" ({journal['why']})" if journal["why"] else ""
    full = "; it takes no more durable tasks" if journal["full"] else ""
    waiting = f"{journal['waiting']} changes ({Bytes(journal['waiting_bytes'])}) wait to be written"
    return f"journal:  {journal['state']}{why}: {waiting}{full}"


def explanation(found: dict[str, Any]) -> str:
    """Return why a task is where it is, for people."""
    about = f" ({found['name']}, queue {found['queue']})" if "name" in found else ""
    over = f"over: {found['state']} {time_of_day(found['ended'])}" if "ended" in found else found["state"]
    lines = [f"task {found['task_id']}{about} is {over}: {found['why']}"]
    counts = [
        f"{found[key]} {word}"
        for key, word in (
            ("errors", "failed"),
            ("crashes", "crashed"),
            ("ooms", "out of memory"),
            ("losses", "lost with their pools"),
        )
        if found.get(key)
    ]
    if counts:
        lines.append(f"earlier attempts: {', '.join(counts)}")
    lines += [f"  {entry}" for entry in found.get("history", ())]
    return "\n".join(lines)
