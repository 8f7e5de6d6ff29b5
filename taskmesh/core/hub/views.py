"""The views of a hub: pools, tasks and events in plain data, and the answers to operators' commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from taskmesh.core import ids
from taskmesh.core.hub.cancellations import Cancellations
from taskmesh.core.hub.clients import Clients
from taskmesh.core.hub.collector import Collector
from taskmesh.core.hub.lanes import Lane, LaneState
from taskmesh.core.hub.limits import MOST_RULES
from taskmesh.core.hub.pools import PoolSessions
from taskmesh.core.hub.schedule import ScheduleRecord
from taskmesh.core.hub.schedules import Schedules
from taskmesh.core.hub.state import HubState
from taskmesh.core.hub.states import ON_ITS_WAY, SUSPECT, TRANSITIONS, State, TaskRecord
from taskmesh.core.hub.ticks import BadTiming, text_of_tick
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.wire import messages as m
from taskmesh.wire.limit_rules import LimitError, read_named, text_of
from taskmesh.wire.runs import PROMISE_NAME

ENDS = [state for state in State if state not in ON_ITS_WAY]
MOST_ROWS = 10_000
KEYS_KEPT = 1000
MOST_TICKS = 1000
CANCELS = ("cancel", "cancel-batch", "cancel-client", "cancel-key")
"""Commands that end a task, all of a batch, or all that clients of a name or id, or of a key's user, have."""
LIMITS = ("limit", "unlimit")
"""Commands that set a limit by hand, and leave it to code again."""
OF_SCHEDULES = ("schedule-pause", "schedule-resume", "schedule-remove", "schedule-run", "schedule-backfill")
"""Commands for one schedule."""
COMMANDS = ("ping", "pause", "resume", "drain")
DEAD = ("dead-replay", "dead-replay-again", "dead-purge")
VERBS = (*COMMANDS, "scale-in", *CANCELS, *LIMITS, *OF_SCHEDULES, *DEAD)
MOST_NAMED = 5
"""Tasks and promises that the reason to wait names."""
AWAY = frozenset({LaneState.DRAINING, LaneState.CUT})
"""States of pools that cannot be asked to leave: they do, or nobody hears."""


class QuestionError(Exception):
    """Internal: the question has no answer, for the reason given."""


class Views:
    """Answers queries and commands. Every value is plain data (dict, list, str, number), ready for JSON.

    Attributes:
        journal: what was told of the journal last, empty without one.
        shortage: what the hub's process lacks and what to do; empty when it lacks nothing.
    """

    def __init__(
        self,
        hub: HubState,
        collector: Collector,
        cancellations: Cancellations,
        *,
        pools: PoolSessions,
        clients: Clients,
        schedules: Schedules,
    ) -> None:
        self._hub = hub
        self._ledger = hub.ledger
        self._collector = collector
        self._cancellations = cancellations
        self._pools = pools
        self._clients = clients
        self._schedules = schedules
        self.journal: dict[str, object] = {}
        self.shortage = ""
        self._over_rate: dict[str, tuple[int, str]] = {}

    def over_rate(self, user: str, dropped: int, cap: str) -> None:
        """So many more messages of who shows this key were dropped, by this cap."""
        before, _ = self._over_rate.get(user, (0, ""))
        if before or len(self._over_rate) < KEYS_KEPT:
            self._over_rate[user] = (before + dropped, cap)

    # --- questions ----------------------------------------------------------------------------------------

    def answer(self, query: m.Query, now: float) -> m.Answer:
        """The answer to a query; its error names what can be asked for."""
        limit = min(max(1, query.limit), MOST_ROWS)
        try:
            match query.what:
                case "status":
                    value: object = self.status(now)
                case "pools":
                    value = [pool_view(lane, now) for lane in self._hub.lanes.values()][:limit]
                case "tasks":
                    value = self.tasks(query.argument, limit, now)
                case "task":
                    value = self.task(query.argument, now)
                case "graph":
                    value = self.graph(query.argument, limit)
                case "batch":
                    value = self.batch(query.argument)
                case "events":
                    value = self.events(query.argument, limit, now)
                case "limits":
                    value = self.limits(limit)
                case _:
                    value = self._of_schedules(query.what, query.argument, limit)
        except QuestionError as error:
            return m.Answer(query.number, None, str(error))
        return m.Answer(query.number, value)

    def _schedule(self, name: str) -> ScheduleRecord:
        schedule = self._schedules.records.get(name)
        if schedule is None:
            there = ", ".join(sorted(self._schedules.records)[:20]) or "none"
            raise QuestionError(f"no schedule {name!r} is here; there are: {there}")
        return schedule

    def _of_schedules(self, what: str, name: str, limit: int) -> list[Any]:
        """Return the schedules, or the next ticks of one."""
        if what == "ticks":
            coming = self._schedules.coming(self._schedule(name), min(limit, MOST_TICKS))
            return [text_of_tick(tick) for tick in coming]
        if what == "schedules":
            records = self._schedules.records
            return [records[each].view() for each in sorted(records)[:limit]]
        raise QuestionError(
            f"no such view: {what!r}; there are status, pools, tasks, task, graph, batch, events, limits, "
            "schedules, ticks"
        )

    def status(self, now: float) -> dict[str, Any]:
        """Counts by state, pools, clients."""
        ledger = self._ledger
        by_state = dict.fromkeys((state.name for state in ON_ITS_WAY), 0)
        for record in ledger.tasks.values():
            by_state[record.state.name] += 1
        return {
            "epoch": self._hub.config.epoch,
            "accepted": ledger.accepted,
            "finished": ledger.finished,
            "ended": self._ended(),
            "tasks": by_state,
            "orphans": self._clients.orphans,
            "unclaimed": len(self._hub.unclaimed),
            "bytes": ledger.size,
            "duplicate_results": self._collector.duplicates,
            "stale_failures": self._collector.stale,
            "pools": [pool_view(lane, now) for lane in self._hub.lanes.values()],
            "refused": dict(self._pools.refused),
            "warnings": self._warnings(),
            "journal": self.journal,
            "kept": self._hub.result_cache.view(),
            "dead": self._hub.letters.view(),
            "over_rate": {
                user: {"dropped": dropped, "cap": cap} for user, (dropped, cap) in self._over_rate.items()
            },
            "clients": [
                {
                    "client": f"{session.client:016x}",
                    "name": session.name,
                    "key": session.user,
                    "present": session.present,
                    "tasks": ledger.account(session.client).tasks,
                }
                for session in self._hub.clients.values()
            ],
        }

    def _ended(self) -> dict[str, int]:
        """Counts of ended tasks by state; tasks that share a key count once."""
        ends = dict.fromkeys((state.name.lower() for state in ENDS), 0)
        for (before, cause), count in self._ledger.counts.items():
            if (after := TRANSITIONS[before, cause]) in ENDS:
                ends[after.name.lower()] += count
        return ends

    def _warnings(self) -> dict[str, str]:
        """List the warnings: shortages of this hub, differing versions, pools that do not run their tasks."""
        pools = {
            f"pool {lane.pool}": "; ".join(filter(None, (lane.warning, lane.breaker.complaint)))
            for lane in self._hub.lanes.values()
        }
        clients = {f"client {session.name}": session.warning for session in self._hub.clients.values()}
        return {who: text for who, text in {"hub": self.shortage, **pools, **clients}.items() if text}

    def tasks(self, state: str, limit: int, now: float) -> list[dict[str, Any]]:
        """Tasks on their way, all or those in one state."""
        wanted = {known.name.lower(): known for known in ON_ITS_WAY}
        name = state.lower()
        if name and name not in wanted:
            raise QuestionError(
                f"{state!r} is no state of a task on its way; there are {', '.join(wanted)}"
                " (finished tasks are not kept)"
            )
        found: list[dict[str, Any]] = []
        for task, record in self._ledger.tasks.items():
            if len(found) >= limit:
                break
            if not name or record.state is wanted[name]:
                found.append(self._brief(task, record))
        return found

    def task(self, text: str, now: float) -> dict[str, Any]:
        """One task with what it waits for."""
        task = self._parse(text)
        record = self._ledger.tasks.get(task)
        if record is None:
            account = self._ledger.accounts.get(task >> SEQ_BITS)
            if failure := self._collector.ended.get(task):
                return {"task_id": text, **failure}
            if account is not None and task & SEQ_MASK in account.finished:
                return {
                    "task_id": text,
                    "state": "FINISHED",
                    "why": "it has its outcome; that is with its client",
                }
            raise QuestionError(f"no task {text} is or was here")
        extra = record.extra
        return {
            **self._brief(task, record),
            "priority": record.spec.priority,
            "tags": sorted(record.spec.route[1]),
            "bytes": len(record.payload),
            "group": record.group,
            "errors": record.errors,
            "crashes": record.crashes,
            "ooms": extra.ooms if extra else 0,
            "losses": record.losses,
            "history": [*extra.pools, *extra.history] if extra else [],
            "why": self._why(record, now),
        }

    def graph(self, text: str, limit: int) -> dict[str, Any]:
        """The tasks on their way that one depends on, directly or not, and those that depend on it.

        Returns:
            The tasks, `limit` at most; edges as pairs of ids, from a task to one that waits for it; whether
            there are more.
        """
        first = self._record(text)
        edges = self._edges_of(first.id >> SEQ_BITS)
        after: dict[int, list[int]] = {}
        before: dict[int, list[int]] = {}
        for upstream, dependent in edges:
            after.setdefault(upstream, []).append(dependent)
            before.setdefault(dependent, []).append(upstream)
        found = {first.id: None}
        for ways in (before, after):
            left = [first.id]
            while left and len(found) <= limit:
                new = [task for task in ways.get(left.pop(), ()) if task not in found]
                found.update(dict.fromkeys(new))
                left += new
        shown = set(list(found)[:limit])
        tasks = self._ledger.tasks
        return {
            "tasks": [self._brief(task, tasks[task]) for task in shown],
            "edges": [[ids.text_of(a), ids.text_of(b)] for a, b in edges if a in shown and b in shown],
            "more": len(found) > limit,
        }

    def _edges_of(self, client: int) -> list[tuple[int, int]]:
        """Pairs of tasks of a client that are on their way: one, and one that waits for it."""
        return [
            (task, dependent.id)
            for task, record in self._ledger.tasks.items()
            if task >> SEQ_BITS == client and (links := record.links) is not None
            for dependent in links.dependents.get(task, ())
            if dependent.state <= State.RUNNING
        ]

    def batch(self, text: str) -> dict[str, Any]:
        """Count the tasks of a batch that are on their way, by state; a chunk of a map counts as one."""
        end = self._record(text)
        if not (end.spec.is_promise and end.group):
            raise QuestionError(f"task {text} is not the end of a batch: `batch.id` names it")
        states = dict.fromkeys((state.name for state in ON_ITS_WAY), 0)
        for record in self._members(end):
            states[record.state.name] += 1
        name = end.extra.key[1].removeprefix("batch ").rpartition(" ")[0]
        return {"task_id": text, "name": name, "tasks": states}

    def _members(self, end: TaskRecord) -> list[TaskRecord]:
        """The records of a batch, but for its end."""
        client, group = end.id >> SEQ_BITS, end.group
        return [
            record
            for task, record in self._ledger.tasks.items()
            if task >> SEQ_BITS == client and record.group == group and record is not end
        ]

    def events(self, since: str, limit: int, now: float) -> list[dict[str, Any]]:
        """The newest events, oldest first; `since`: only those with a higher number."""
        if since and not since.isdigit():
            raise QuestionError(f"events are asked for since a number, not {since!r}")
        after = int(since or 0)
        newest = [event for event in self._hub.events if event[0] > after][-limit:]
        return [
            {"number": number, "ago": round(now - when, 3), "kind": record.kind, **record.fields}
            for number, when, record in newest
        ]

    def limits(self, limit: int) -> list[dict[str, Any]]:
        """Limits with their rules, and what they have let go and hold back; keys together."""
        limits = self._ledger.limits
        rows: dict[str, dict[str, Any]] = {}
        for name in sorted({*limits.rules, *limits.fixed})[:limit]:
            rule = limits.rule(name)
            if rule is not None:
                stated = limits.rules.get(name)
                rows[name] = {
                    "limit": name,
                    "rule": text_of(rule),
                    "code": text_of(stated) if stated is not None else "",
                    "set_by": "operator" if name in limits.fixed else "code",
                    "keys": 0,
                    "running": 0,
                    "started": 0,
                    "waiting": 0,
                }
        for (name, part), counter in limits.counters.items():
            if (row := rows.get(name)) is not None:
                row["keys"] += bool(part)
                row["running"] += len(counter.holders)
                if counter.window is not None:
                    counter.window.pass_to(self._hub.now)
                    row["started"] += counter.window.count
        for backlog in (self._ledger.backlog, self._ledger.suspects):
            for lineup in backlog.limited.values():
                waiting = sum(
                    record.state is State.QUEUED
                    for part in lineup.parts.values()
                    for record in part.entries()
                )
                for rule in lineup.route[2]:
                    if rule.name in rows:
                        rows[rule.name]["waiting"] += waiting
        return list(rows.values())

    def _brief(self, task: int, record: TaskRecord) -> dict[str, Any]:
        lane = self._hub.lanes.get(record.session)
        held = State.SENT <= record.state <= State.RUNNING
        return {
            "task_id": ids.text_of(task),
            "name": record.spec.spec.name,
            "state": record.state.name,
            "queue": record.spec.route[0],
            "attempt": record.attempt - record.returns,
            "pool": lane.pool if lane is not None and held else "",
        }

    def _why(self, record: TaskRecord, now: float) -> str:
        if record.state is State.WAITING:
            return self._why_waiting(record, now)
        if record.state is not State.QUEUED:
            lane = self._hub.lanes.get(record.session)
            pool = lane.pool if lane is not None else "?"
            return f"pool {pool} {'runs' if record.state is State.RUNNING else 'has'} it"
        if record.id >> SEQ_BITS in self._ledger.backlog.withheld:
            return "its client has to take results that wait for it first (client.max_bytes), or cancels it"
        return self._held_back(record) or self._no_slot(record)

    def _no_slot(self, record: TaskRecord) -> str:
        """Return the reason why no pool has a queued task, in words."""
        queue, tags, _ = record.spec.route
        serving = [lane for lane in self._hub.lanes.values() if lane.serves(record.spec.route)]
        if not serving:
            wish = f"queue {queue!r}" + (f" with tags {', '.join(sorted(tags))}" if tags else "")
            return f"no pool serves {wish}: start one, or look at `taskmesh pools`"
        ready = [lane for lane in serving if lane.state is LaneState.READY]
        if not ready:
            states = ", ".join(f"{lane.pool} is {lane.state.value}" for lane in serving)
            return f"no pool that serves queue {queue!r} takes work: {states}"
        return f"every pool that serves queue {queue!r} is busy; its turn comes"

    def _why_waiting(self, record: TaskRecord, now: float) -> str:
        if record.spec.is_promise:
            return f"it is a promise: `taskmesh fulfil {record.extra.key[1]}` ends it"
        if record.spec.is_attachment:
            return "it waits for another client's task, which that may bring from before the hub's restart"
        links = record.links
        if links is not None and links.awaits and links.waits and not links.recovers:
            keys = [key if name == PROMISE_NAME else name for name, key in links.awaits]
            named = ", ".join(keys[:MOST_NAMED]) + (", ..." if len(keys) > MOST_NAMED else "")
            return f"its last attempt has ended to wait for {named} (WaitFor)"
        if links is not None and links.waits and not links.recovers:
            number = "a task" if links.waits == 1 else f"{links.waits} tasks"
            return f"it waits for {number} that it depends on"
        if not record.due:
            return f"it waits {self._hub.recovery.left(now):.1f} s at most for pools to come back"
        if record.extra is not None and record.extra.at:
            return f"it does not start before {text_of_tick(record.extra.at)}"
        what = "a retry" if record.errors or record.begun else "its time to start"
        return f"it waits {max(0.0, record.due - now):.1f} s for {what}"

    def _held_back(self, record: TaskRecord) -> str:
        """Return the limit that a queued task waits for, in words; empty if none holds it back."""
        if record.part is None:
            return ""
        backlog = self._ledger.suspects if record.losses >= SUSPECT else self._ledger.backlog
        lineup = backlog.limited.get((record.spec.route, record.spec.priority))
        part = lineup.parts.get(record.part) if lineup is not None else None
        counter = None if lineup is None or part is None else lineup.waits_for or part.waits_for
        if counter is None or lineup is None or part is None:
            return ""
        name, key = counter.key
        of_key = f" of {key!r}" if key else ""
        if self._ledger.limits.recovers and counter.window is None:
            left = self._hub.recovery.left(self._hub.now)
            return f"limit {name}{of_key} waits {left:.1f} s at most for pools to say what they run"
        return f"limit {name}{of_key} {text_of(counter.rule)}, {part.ahead_of(record):,} before it"

    @staticmethod
    def _parse(text: str) -> int:
        try:
            return ids.parse(text)
        except ValueError as error:
            raise QuestionError(str(error)) from error

    def _record(self, text: str) -> TaskRecord:
        record = self._ledger.tasks.get(self._parse(text))
        if record is None:
            raise QuestionError(f"no task {text} is on its way: it is finished, or was never here")
        return record

    # --- commands -----------------------------------------------------------------------------------------

    def obey(self, command: m.Command, now: float) -> m.Answer:
        """Carries an operator's command out; returns the answer."""
        try:
            if command.verb in CANCELS:
                return m.Answer(command.number, self._cancel(command.verb, command.target))
            if command.verb in LIMITS:
                return m.Answer(command.number, self._set_limit(command.verb, command.target))
            if command.verb in OF_SCHEDULES:
                return m.Answer(command.number, self._obey_for_schedule(command.verb, command.target))
            verb, lanes = command.verb, self._meant(command)
        except QuestionError as error:
            return m.Answer(command.number, None, str(error))
        for lane in lanes:
            told = "drain" if verb == "scale-in" else verb
            lane.wish(told)
            self._hub.publish(lane.pool, m.PoolCommand(told, command.number, lane.instance))
        value = [
            {
                "pool": lane.pool,
                "session": lane.session,
                "running": at_work(lane),
                "heard": round(now - lane.heard, 3),
                "asked_at": now,
            }
            for lane in lanes
        ]
        return m.Answer(command.number, value)

    def _obey_for_schedule(self, verb: str, target: str) -> dict[str, object]:
        schedules = self._schedules
        if verb == "schedule-backfill":
            since, until, target = (*target.split(" ", 2), "", "")[:3]
        schedule = self._schedule(target)
        told: dict[str, object] = {"schedule": target}
        try:
            match verb:
                case "schedule-remove":
                    schedules.remove(target, "an operator's command")
                case "schedule-run":
                    task = schedules.run(schedule)
                    if not task:
                        raise QuestionError("the hub is full (hub.max_tasks)")
                    told["task_id"] = task
                case "schedule-backfill":
                    told["fired"] = schedules.backfill(schedule, float(since), float(until))
                case _:
                    schedules.pause(schedule, paused=verb == "schedule-pause")
        except (BadTiming, ValueError) as error:
            raise QuestionError(str(error)) from error
        return told

    def _meant(self, command: m.Command) -> list[Lane]:
        """The pools that a command is for."""
        if command.verb == "scale-in":
            return self._idlest(command.target)
        if command.verb in COMMANDS:
            return self._addressed(command.target)
        raise QuestionError(f"no such command: {command.verb!r}; there are {', '.join(VERBS)}")

    def _idlest(self, target: str) -> list[Lane]:
        """Those of a set that lose least when they leave; target: how many, a colon, the set.

        A set is all pools of which the name begins with the set's and a hyphen, as the pods of a Deployment.
        Among equals the one that came last leaves, as Kubernetes has it.
        """
        number, _, name = target.partition(":")
        if not number.isdigit() or int(number) < 1:
            raise QuestionError(f"{number!r} is no number of pools")
        there = [
            lane
            for lane in self._hub.lanes.values()
            if lane.state not in AWAY and (name in (lane.pool, "all") or lane.pool.startswith(f"{name}-"))
        ]
        if len(there) < int(number):
            raise QuestionError(
                f"{name!r} has {len(there)} pools that could leave, not {number}: {pools_named(there)}"
            )
        there.sort(key=lambda lane: (at_work(lane), lane.outstanding, -lane.session))
        return there[: int(number)]

    def _addressed(self, target: str) -> list[Lane]:
        if target == "all":
            return list(self._hub.lanes.values())
        lane = self._pools.lane_of(target)
        if lane is None:
            there = pools_named(self._hub.lanes.values())
            raise QuestionError(f"no pool {target!r} is here; there are: {there}")
        return [lane]

    def _cancel(self, verb: str, target: str) -> dict[str, object]:
        if verb == "cancel-batch":
            self.batch(target)
            members = self._members(self._record(target))
            cancelled = sum(self._cancellations.cancel(record.id) for record in members)
            return {"cancelled": cancelled}
        if verb != "cancel":
            return self._cancel_all(verb, target)
        if not self._cancellations.cancel(self._parse(target)):
            raise QuestionError(f"no task {target} is on its way: it is finished, or was never here")
        return {"cancelled": target}

    def _set_limit(self, verb: str, target: str) -> dict[str, object]:
        """Set a limit by hand, or leave it to code again; return what counts now."""
        limits = self._ledger.limits
        if verb == "limit":
            try:
                rule = read_named(target)
            except LimitError as error:
                raise QuestionError(str(error)) from error
            if rule.name not in limits.fixed and len(limits.fixed) >= MOST_RULES:
                raise QuestionError(f"{MOST_RULES:,} limits are set by hand: unset one of them first")
            limits.set_rule(rule)
            name = rule.name
        else:
            name = target
            if not limits.unset_rule(name):
                set_by_hand = ", ".join(sorted(limits.fixed)[:100]) or "none"
                raise QuestionError(f"limit {name!r} is not set by hand; there are: {set_by_hand}")
        counts = limits.rule(name)
        text = text_of(counts) if counts is not None else ""
        self._hub.log(
            "limit.set", {"limit": name, "rule": text, "by": "operator" if verb == "limit" else "code"}
        )
        return {"limit": name, "rule": text}

    def _cancel_all(self, verb: str, target: str) -> dict[str, object]:
        """Cancels what all clients have of this name or id, or that show the key of this user."""
        accounts = self._ledger.accounts
        if verb == "cancel-key":
            found = [client for client, account in accounts.items() if target == account.user]
        else:
            found = [c for c, account in accounts.items() if target in (account.name, f"{c:016x}")]
        if not target or not found:
            what = "client that shows the key" if verb == "cancel-key" else "client of the name or id"
            raise QuestionError(f"no {what} {target!r} is or was here: `taskmesh status --json` names them")
        tasks = self._clients.cancel_tasks_of(found, "an operator's command")
        return {"cancelled": tasks, "clients": [f"{client:016x}" for client in found]}


def at_work(lane: Lane) -> int:
    """The number of a pool's slots that have work, as far as the hub knows."""
    return min(lane.slots, lane.outstanding)


def pools_named(lanes: Iterable[Lane]) -> str:
    """Their names in a sentence."""
    return ", ".join(sorted(lane.pool for lane in lanes)) or "none"


def pool_view(lane: Lane, now: float) -> dict[str, Any]:
    """One pool in plain data."""
    return {
        "pool": lane.pool,
        "session": lane.session,
        "state": lane.state.value,
        "slots": lane.slots,
        "busy": lane.busy_slots,
        "outstanding": lane.outstanding,
        "queues": sorted(lane.queues),
        "tags": sorted(lane.tags),
        "host": lane.hello.host,
        "pid": lane.hello.pid,
        "python": lane.hello.python,
        "heard": round(now - lane.heard, 3),
        "other_hubs": lane.other_hubs[0],
        "hubs_away": lane.other_hubs[1],
        "heard_at": lane.heard,
    }
