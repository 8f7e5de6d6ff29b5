"""A spec as the hub keeps it, and what it counts for."""

from __future__ import annotations

from taskmesh.core.credit import ServiceTime
from taskmesh.core.specs import spec_bytes
from taskmesh.hub.machine.books.account import Account
from taskmesh.hub.machine.books.backlog import Route
from taskmesh.hub.machine.figures.functions import FunctionFigures
from taskmesh.messages.runs import ATTACHMENT, CHUNK, PROMISE, SINK_VALUE, Spec

SPEC = 1_500
"""Bytes that a spec takes beside those that it came in."""


class SpecEntry(ServiceTime):
    """A spec as the hub keeps it: with its route, measured service time and count of live tasks.

    Attributes:
        result_size: bytes of a result, measured; 0 for an embedded client's, which are in its hands at once.
        live: its tasks on their way. waiting: of these, the WAITING ones.
        size: the bytes that it takes, about. payer: the account that they are on while it has live
            tasks, which may be closed.
        figures: of its function, which all specs of one name share.
        ignores_result: clients are not sent results; those of a chunk's items its slot leaves out.
        is_promise, is_sink_value, is_attachment: the tasks have no function: somebody fulfils them; their
            payloads go to their sink; each ends as another one does.
        needs_no_pool: the tasks end by themselves. is_chunk: each is a part of a map.
    """

    __slots__ = (
        "figures",
        "ignores_result",
        "is_attachment",
        "is_chunk",
        "is_promise",
        "is_sink_value",
        "live",
        "needs_no_pool",
        "number",
        "payer",
        "priority",
        "result_size",
        "route",
        "size",
        "spec",
        "waiting",
    )

    def __init__(self, number: int, spec: Spec, figures: FunctionFigures) -> None:
        super().__init__()
        self.number = number
        self.spec = spec
        self.figures = figures
        self.route: Route = (spec.queue, frozenset(spec.tags), spec.limits, spec.sink)
        self.priority = spec.priority
        self.is_chunk = spec.kind == CHUNK
        self.is_promise = spec.kind == PROMISE
        self.is_attachment = spec.kind == ATTACHMENT
        self.is_sink_value = spec.kind == SINK_VALUE
        self.needs_no_pool = self.is_promise or self.is_sink_value
        self.ignores_result = spec.ignore_result and not self.is_chunk
        self.result_size = 0.0
        self.live = self.waiting = 0
        self.size = SPEC + len(spec_bytes(spec))
        self.payer: Account | None = None

    def measured(self, count: int, elapsed: float) -> None:
        """Take in `count` tasks that took `elapsed` seconds together."""
        super().measured(count, elapsed)
        self.figures.run.add(elapsed / count, count)

    def weighed(self, count: int, size: int) -> None:
        """Take in `count` results of `size` bytes together."""
        each = size / count
        self.result_size += 0.3 * (each - self.result_size) if self.result_size else each


class RestingSpecs:
    """Specs without a task on its way: they count for nobody, and may be forgotten.

    Attributes:
        specs: by number, those first that rest for longest.
        size: their bytes.
    """

    def __init__(self) -> None:
        self.specs: dict[int, SpecEntry] = {}
        self.size = 0

    def add(self, entry: SpecEntry) -> None:
        self.specs[entry.number] = entry
        self.size += entry.size

    def discard(self, entry: SpecEntry) -> None:
        if self.specs.pop(entry.number, None) is not None:
            self.size -= entry.size

    def evict(self, most: int, most_bytes: int) -> list[int]:
        """Forget those that have rested for longest until so many, of so many bytes, are left."""
        gone: list[int] = []
        while self.specs and (len(self.specs) > most or self.size > most_bytes):
            number = next(iter(self.specs))
            self.discard(self.specs[number])
            gone.append(number)
        return gone
