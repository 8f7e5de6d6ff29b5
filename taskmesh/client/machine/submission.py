"""Submission: how tasks become Submits, which a client keeps until the hub has them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, groupby

from msgspec.structs import replace

from taskmesh.client.machine.settings import UnresolvedTasks
from taskmesh.link.link import SendWindow
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Failed, Run, Spec, Value

MAX_SUBMIT = 1000
"""Tasks in one Submit: a hub that is full refuses little at a time, and others do not wait for long."""
MAX_CANCELS = 5_000
"""Tasks that one message gives up: some 25 ms of the hub's work, and others get their turn."""
MAX_BYTES = 8 << 20
"""Payload bytes in one Submit, but for a task that has more by itself."""
PARTS = 4
"""Submits that make a window, at least: while one is taken in the next ones are under way."""
TOO_LARGE = "taskmesh.errors.TooLarge"
UNKNOWN = Failed(0, 0, 0, "lost", text="neither its client nor the hub knows its outcome any more")
"""The end of a task of which nobody knows anything."""


class SubmitWindow(SendWindow[m.Submit]):
    """Submits of a client that its hub has not acknowledged, and the sizes that the hub takes.

    Args:
        pending: Knows the outcomes of tasks that have ended, or their calls where results are ignored.

    Attributes:
        limit: Bytes that may be in flight; infinite if the hub sets no limit.
        max_payload: Bytes of a call that the hub takes, 0 if it takes all that this client makes.
    """

    __slots__ = ("_most_bytes", "_most_tasks", "_pending", "limit", "max_payload")

    def __init__(self, pending: UnresolvedTasks) -> None:
        super().__init__()
        self._pending = pending
        self.limit = math.inf
        self.max_payload = 0
        self._most_tasks = MAX_SUBMIT
        self._most_bytes = MAX_BYTES

    def welcomed(self, welcome: m.ClientWelcome, max_payload: int) -> None:
        """A hub has said what it takes; this client itself makes calls of up to `max_payload` bytes."""
        window = welcome.window
        self.limit = window or math.inf
        self._most_bytes = min(MAX_BYTES, max(1, window // PARTS)) if window else MAX_BYTES
        self._most_tasks = max(1, min(MAX_SUBMIT, welcome.max_tasks // 2))
        self.max_payload = welcome.max_payload if welcome.max_payload < max_payload else 0

    # --- in -----------------------------------------------------------------------------------------------

    def submit(self, specs: list[tuple[int, Spec]], runs: list[Run], now: float) -> None:
        """Make Submits of tasks, none larger than the hub takes."""
        if len(runs) == 1 and len(runs[0].payloads) == 1:  # a task alone is never cut
            self._keep(specs, runs, len(runs[0].payloads[0]), now)
            return
        batch: list[Run] = []
        count = size = 0
        for run in runs:
            for part in split_run(run, self._most_tasks, self._most_bytes):
                weight = sum(map(len, part.payloads))
                if batch and (count + len(part.seqs) > self._most_tasks or size + weight > self._most_bytes):
                    used = {one.spec for one in batch}
                    self._keep([one for one in specs if one[0] in used], batch, size, now)
                    specs = [one for one in specs if one[0] not in used]
                    batch, count, size = [], 0, 0
                batch.append(part)
                count += len(part.seqs)
                size += weight
        if batch:
            self._keep(specs, batch, size, now)

    def _keep(self, specs: list[tuple[int, Spec]], runs: list[Run], size: int, now: float) -> None:
        """Keep a Submit, with the outcomes that its tasks depend on, as far as they are there."""
        submit = m.Submit(self.next, specs, runs)
        for run in runs:
            if run.needs or run.after:
                values = self._values_for(runs, upstream_of(runs))
                submit.values = [value for value in values if not value.is_kept]  # the hub may have these
                size += sum(len(value.payload) for value in submit.values)
                break
        self.append(submit, size, now)

    def give_up(self, seqs: list[int], unstarted: list[int], now: float, *, whole: bool = False) -> None:
        """Tell the hub which tasks are given up, or never come; `unstarted` ones unless they have started.

        Args:
            seqs: Counters of tasks.
            unstarted: Counters of tasks.
            now: The time.
            whole: True if all that the client waits for has been submitted now.
        """
        *parts, last = portions(seqs, unstarted)
        for some, others in parts:
            self.append(m.Submit(self.next, [], [], some, unstarted=others), 0, now)
        self.append(m.Submit(self.next, [], [], last[0], unstarted=last[1], whole=whole), 0, now)

    def add_values(self, submit: m.Submit, seqs: list[int]) -> bool:
        """Add outcomes that the hub lacks to a Submit that is kept; return False if it has them already.

        A task whose result is ignored comes again, before those that need it. What is not known here either
        can never come: what depends on it fails.
        """
        known = {value.seq for value in submit.values}
        lacking = set(seqs) - known - {seq for run in submit.runs if run.rerun for seq in run.seqs}
        if lacking:
            found = self._values_for(submit.runs, lacking)
            specs, runs = self._pending.calls_of(sorted(lacking.difference([value.seq for value in found])))
            runs, failed = self.fitting(runs)
            found += [Value(failure.seq, failed=failure) for failure in failed]
            again = {seq for run in runs for seq in run.seqs}
            known |= again | {value.seq for value in found}
            found += self._values_for(runs, upstream_of(runs) - known)
            found += [Value(seq, failed=UNKNOWN) for seq in sorted(lacking - known)]
            self.kept[submit.number] = replace(
                submit,
                specs=[*submit.specs, *specs],
                runs=[*runs, *submit.runs],
                values=[*submit.values, *found],
            )
        return bool(lacking)

    def _values_for(self, runs: Iterable[Run], seqs: set[int]) -> list[Value]:
        """Return outcomes of those of these tasks that have ended, but for needed results that are gone."""
        needed = {seq for run in runs for edges in run.needs for seq in edges}
        found = self._pending.values_of(sorted(seqs))
        return [value for value in found if value.seq not in needed or not value.is_bare]

    # --- what is kept -------------------------------------------------------------------------------------

    def cancels(self) -> list[int]:
        """Return all tasks that the Submits which are kept give up."""
        return [seq for submit in self.kept.values() for seq in submit.cancels]

    def fitting(self, runs: list[Run]) -> tuple[list[Run], list[Failed]]:
        """Return runs without the calls that are too large for the hub, and failures for these."""
        return without_large(runs, self.max_payload) if self.max_payload else (runs, [])

    def fit(self) -> list[Failed]:
        """Take calls that are too large for the hub out of all Submits; return their failures."""
        failures: list[Failed] = []
        for number, submit in self.kept.items():
            runs, failed = self.fitting(submit.runs)
            if failed:
                cancels = submit.cancels + [failure.seq for failure in failed]
                self.kept[number] = replace(submit, runs=runs, cancels=cancels)
                failures += failed
        return failures

    def recut(self, now: float) -> None:
        """Make the Submits as large as the hub takes them. None of them has ever been sent."""
        waiting = list(self.kept.values())
        if any(self._is_too_large(submit) for submit in waiting):
            self.restart(self.first)
            for submit in waiting:
                self.submit(submit.specs, submit.runs, now)
                if submit.cancels or submit.unstarted:
                    self.append(replace(submit, number=self.next, specs=[], runs=[]), 0, now)

    def _is_too_large(self, submit: m.Submit) -> bool:
        count = sum(len(run.seqs) for run in submit.runs)
        return count > self._most_tasks or (count > 1 and self.size_of(submit.number) > self._most_bytes)


class Ages:
    """Ages of tasks that may expire (`Spec.expires`): seconds since a hub first accepted them.

    Attributes:
        expiring: Numbers of the specs of such tasks.
        since: Times of their acceptance, by counter, until they end.
    """

    def __init__(self) -> None:
        self.expiring: set[int] = set()
        self.since: dict[int, float] = {}

    def submitted(self, specs: Iterable[tuple[int, Spec]]) -> None:
        """Tasks of these specs are submitted from now on."""
        self.expiring.update([number for number, spec in specs if spec.expires > 0])

    def accepted(self, runs: list[Run], now: float) -> None:
        """A hub has accepted these tasks."""
        for run in runs:
            if run.spec in self.expiring:
                for seq in run.seqs:
                    self.since.setdefault(seq, now)

    def ended(self, seqs: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for seq in seqs:
            self.since.pop(seq, None)

    def stated(self, runs: list[Run], now: float) -> list[Run]:
        """Return runs with their age, cut where tasks of a run differ in it."""
        found: list[Run] = []
        for run in runs:
            if self.since.keys().isdisjoint(run.seqs):
                found.append(run)
                continue
            since = [self.since.get(seq, now) for seq in run.seqs]
            for first, places in groupby(range(len(since)), since.__getitem__):
                found.append(replace(part_of(run, places), age=now - first))
        return found


def portions(seqs: list[int], unstarted: list[int]) -> list[tuple[list[int], list[int]]]:
    """Cut what is given up into messages, one at least."""
    most = max(len(seqs), len(unstarted), 1)
    return [
        (seqs[at : at + MAX_CANCELS], unstarted[at : at + MAX_CANCELS]) for at in range(0, most, MAX_CANCELS)
    ]


def split_run(run: Run, limit: int, size: int) -> list[Run]:
    """Cut a run into parts of at most `limit` tasks and `size` bytes; a task that is larger is a part."""
    bytes_to = list(accumulate(map(len, run.payloads)))
    count = len(bytes_to)
    if count <= limit and (not count or bytes_to[-1] <= size):
        return [run]
    parts: list[Run] = []
    start = before = 0
    while start < count:
        end = bisect_right(bytes_to, before + size, start, min(start + limit, count))
        end = max(end, start + 1)
        parts.append(part_of(run, range(start, end)))
        start, before = end, bytes_to[end - 1]
    return parts


def part_of(run: Run, indexes: Iterable[int]) -> Run:
    """Return a run of those of its tasks that are at these places."""
    at = list(indexes)
    fields = {name: getattr(run, name) for name in ("seqs", "payloads", "needs", "after")}
    return replace(run, **{name: [values[i] for i in at] for name, values in fields.items() if values})


def upstream_of(runs: Iterable[Run]) -> set[int]:
    return {seq for run in runs for edges in (*run.needs, *run.after) for seq in edges}


def without_large(runs: list[Run], limit: int) -> tuple[list[Run], list[Failed]]:
    """Return runs without calls above `limit` bytes, which would cut the link, and failures for these."""
    kept: list[Run] = []
    failed: list[Failed] = []
    for run in runs:
        sizes = [len(payload) for payload in run.payloads]
        if max(sizes, default=0) <= limit:
            kept.append(run)
            continue
        fits = [i for i, size in enumerate(sizes) if size <= limit]
        failed += [
            too_large(seq, size, limit) for seq, size in zip(run.seqs, sizes, strict=True) if size > limit
        ]
        if fits:
            kept.append(part_of(run, fits))
    return kept, failed


def too_large(seq: int, size: int, limit: int) -> Failed:
    text = (
        f"its arguments take {size:,} bytes, and its hub takes max_payload = {limit:,} only. Pass a path or "
        "a key instead of the data, split it over several tasks, or raise max_payload on the hub too"
    )
    return Failed(0, seq, 0, "result", type_name=TOO_LARGE, text=text)
