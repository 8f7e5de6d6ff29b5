"""A small supervisor for tests: one SlotSupervisor in a selectors loop, and what it has told."""

import selectors
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from taskmesh.core.events import SlotExited, SlotFinished, SlotReady, SlotRecalled, SlotReported
from taskmesh.messages.runs import CALL, LaneRun, Spec
from taskmesh.messages.slot_messages import SlotFailure, SlotLogs, SlotTasks
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor, SlotSettings
from taskmesh.pool.slots.supervisor import SlotEvent, SlotSupervisor
from taskmesh.serialize import payload
from taskmesh.serialize.code import dump_function
from taskmesh.shm.blob import Blob

CLIENT = 0xC11E


class Driver:
    """Starts slots, hands tasks over and keeps every event.

    Attributes:
        events: in the order in which they came. values: serial -> result, for each slot. failures: likewise.
    """

    def __init__(self, settings: SlotSettings | None = None, *, tee: bool = False) -> None:
        self._selector = selectors.DefaultSelector()
        self.events: list[SlotEvent] = []
        self.values: dict[int, dict[int, Any]] = defaultdict(dict)
        self.failures: dict[int, dict[int, SlotFailure]] = defaultdict(dict)
        self.next_serial: dict[int, int] = defaultdict(int)
        self.generation: dict[int, int] = defaultdict(int)
        self._specs: dict[tuple[Any, ...], int] = {}
        self._known: dict[int, set[int]] = defaultdict(set)
        self._all_specs: dict[int, Spec] = {}
        self.decode = True
        fork_server = ForkServerSupervisor(settings or SlotSettings("test"))
        self.host = SlotSupervisor(fork_server, self, self._on_event, tee=tee)
        self.closed = False

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self, timeout: float = 0.0) -> None:
        """Close the host once."""
        if not self.closed:
            self.closed = True
            self.host.close(timeout)
            self._selector.close()

    # --- the loop ---

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def turn(self, timeout: float = 0.05) -> None:
        """Wait for the host once."""
        if time.monotonic() >= self.host.deadline:
            self.host.turn(time.monotonic())
        for key, _ in self._selector.select(timeout):
            key.data()

    def run_until(self, predicate: Callable[[], Any], timeout: float = 20.0) -> Any:
        """Drive the loop until the predicate is true; fail after the timeout."""
        deadline = time.monotonic() + timeout
        while not (value := predicate()):
            assert time.monotonic() < deadline, f"not within {timeout} s; last events: {self.events[-5:]}"
            self.turn()
        return value

    def _on_event(self, event: SlotEvent) -> None:
        self.events.append(event)
        if isinstance(event, SlotFinished):
            for segment in event.results.done:
                for offset, data in enumerate(segment.payloads):
                    serial = segment.first + offset
                    assert serial not in self.values[event.slot], f"serial {serial} twice"
                    self.values[event.slot][serial] = payload.loads(data) if self.decode else data
                    if isinstance(data, Blob):  # holds a descriptor
                        segment.payloads[offset] = None
            for failure in event.results.failed:
                assert failure.serial not in self.failures[event.slot], (
                    f"serial {failure.serial} failed twice"
                )
                self.failures[event.slot][failure.serial] = failure

    # --- words ---

    def of(self, kind: type, slot: int | None = None) -> list[Any]:
        """The events of a kind so far."""
        return [
            event for event in self.events if isinstance(event, kind) and (slot is None or event.slot == slot)
        ]

    def start(self, *slots: int) -> None:
        """Start slots and wait until they are ready."""
        before = len(self.of(SlotReady))
        for slot in slots:
            self.host.start(slot)
            self.next_serial[slot] = self.generation[slot] = 0
            self._known[slot].clear()
        self.run_until(lambda: len(self.of(SlotReady)) == before + len(slots))

    def spec(self, function: Callable[..., Any], **options: Any) -> int:
        """The number of a spec for this function and these options."""
        key = (function, *sorted(options.items()))
        if key not in self._specs:
            number = self._specs[key] = len(self._specs) + 1
            options = {"name": getattr(function, "__qualname__", repr(function)), "kind": CALL, **options}
            self._all_specs[number] = Spec(function=dump_function(function), **options)
        return self._specs[key]

    def run_of(self, spec: int, payloads: Sequence[Any]) -> LaneRun:
        """A run of that spec."""
        return LaneRun(spec, CLIENT, 1, 0, list(range(len(payloads))), list(payloads))

    def give(self, slot: int, runs: Sequence[LaneRun]) -> list[int]:
        """Hand runs over in one message; returns the tasks' serials."""
        first = self.next_serial[slot]
        specs = []
        for run in runs:
            if run.spec not in self._known[slot]:
                self._known[slot].add(run.spec)
                specs.append((run.spec, self._all_specs[run.spec]))
        prints = any(self._all_specs[run.spec].stream_logs for run in runs)
        self.host.hand_over(slot, SlotTasks(first, self.generation[slot], specs, list(runs), prints))
        self.next_serial[slot] = first + sum(len(run.seqs) for run in runs)
        return list(range(first, self.next_serial[slot]))

    def printed(self, slot: int, serial: int) -> list[str]:
        """Return the lines that a task has logged or printed so far."""
        news = [event.news for event in self.of(SlotReported, slot)]
        logs = [told for told in news if isinstance(told, SlotLogs) and told.serial == serial]
        return [line.text for told in logs for line in told.lines]

    def forget(self, slot: int, function: Callable[..., Any]) -> None:
        """Tell the slot to forget a function, which is sent again before its next use."""
        self._known[slot].discard(number := self.spec(function))
        message = SlotTasks(self.next_serial[slot], self.generation[slot], [(number, None)], [])
        self.host.hand_over(slot, message)

    def call(
        self, slot: int, function: Callable[..., Any], *argument_tuples: tuple[Any, ...], **options: Any
    ) -> list[int]:
        """Hand over calls of one function in one run; returns their serials."""
        calls = argument_tuples or ((),)
        payloads = [payload.dumps_call(args, {}, where="test") for args in calls]
        return self.give(slot, [self.run_of(self.spec(function, **options), payloads)])

    def recall(self, slot: int) -> int:
        """Take tasks back and return how many."""
        before = len(self.of(SlotRecalled, slot))
        self.generation[slot] += 1
        self.host.recall(slot, self.generation[slot])
        self.run_until(lambda: len(self.of(SlotRecalled, slot)) > before)
        return self.of(SlotRecalled, slot)[-1].count

    def finished(self, slot: int, serials: Sequence[int]) -> bool:
        """Whether all of these have a value or a failure."""
        return all(serial in self.values[slot] or serial in self.failures[slot] for serial in serials)

    def result(self, slot: int, serial: int, timeout: float = 20.0) -> Any:
        """Wait for one task's value."""
        self.run_until(lambda: self.finished(slot, [serial]), timeout)
        assert serial in self.values[slot], self.failures[slot][serial]
        return self.values[slot][serial]

    def failure(self, slot: int, serial: int, timeout: float = 20.0) -> SlotFailure:
        """Wait for one task's failure."""
        self.run_until(lambda: self.finished(slot, [serial]), timeout)
        assert serial in self.failures[slot], self.values[slot][serial]
        return self.failures[slot][serial]

    def exit_of(self, slot: int, timeout: float = 20.0) -> SlotExited:
        """Wait for a slot's exit."""
        return self.run_until(lambda: self.of(SlotExited, slot), timeout)[-1]


__all__ = ["CLIENT", "Driver", "SlotExited", "SlotFinished", "SlotReady", "SlotRecalled", "SlotReported"]
