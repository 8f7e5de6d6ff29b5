"""Traces by OpenTelemetry: a span around each submission, one around each task, in one trace (extra `otel`).

Names and attributes are those of the semantic conventions for messaging
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/), which are in development.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from taskmesh.middleware import Call, Middleware

FLUSH_MS = 2000
_propagator = TraceContextTextMapPropagator()


class OpenTelemetry(Middleware[None]):
    """Trace what a sampled span submits; without one nothing is recorded. Attempts of a task are siblings.

    Args:
        setup: sets the process's tracer provider, in each slot, as the program has done in its own process.
    """

    def __init__(self, setup: Callable[[], object] | None = None) -> None:
        self._setup = setup

    def process_start(self) -> Iterator[None]:
        """Set the slot's provider; what it holds back is sent before the process ends."""
        if self._setup is not None:
            self._setup()
        yield
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)  # of the SDK
        if flush is not None:
            flush(FLUSH_MS)

    def around_submit(self, call: Call) -> Iterator[None]:
        """Begin a span `send QUEUE`, whose context travels with the call."""
        if not trace.get_current_span().get_span_context().trace_flags.sampled:
            _propagator.inject(call.headers)
            yield
            return
        name, attributes = f"send {call.queue}", _attributes(call, "send")
        with trace.get_tracer("taskmesh").start_as_current_span(
            name, kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            _propagator.inject(call.headers)
            yield
            if call.id:
                span.set_attribute("messaging.message.id", call.id)

    def around_task(self, call: Call) -> Iterator[None]:
        """Begin a span `process QUEUE` in the trace of the submission."""
        context = _propagator.extract(call.headers, Context())
        sent = trace.get_current_span(context).get_span_context()
        token = attach(context)
        try:
            if not sent.trace_flags.sampled:
                yield
                return
            attributes = {**_attributes(call, "process"), "taskmesh.task.attempt": call.attempt}
            with trace.get_tracer("taskmesh").start_as_current_span(
                f"process {call.queue}", kind=SpanKind.CONSUMER, attributes=attributes, links=[Link(sent)]
            ) as span:
                try:
                    yield
                except BaseException as error:
                    span.set_attribute("error.type", type(error).__qualname__)
                    raise
        finally:
            detach(token)


def _attributes(call: Call, operation: str) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "messaging.system": "taskmesh",
        "messaging.destination.name": call.queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "taskmesh.task.name": call.name,
    }
    if call.id:
        found["messaging.message.id"] = call.id
    if call.items > 1:
        found["messaging.batch.message_count"] = call.items
    return found
