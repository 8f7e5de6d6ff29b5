"""Set-ups of the libraries that observe tasks, for slots of tests: each writes what it gets to a file."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport


def append(path: Path, value: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class FileExporter(SpanExporter):
    """Writes spans to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            append(
                self._path,
                {
                    "name": span.name,
                    "kind": span.kind.name,
                    "pid": os.getpid(),
                    "trace": span.context.trace_id,
                    "id": span.context.span_id,
                    "parent": span.parent.span_id if span.parent else 0,
                    "links": [link.context.span_id for link in span.links],
                    "attributes": dict(span.attributes or {}),
                    "error": span.status.description or "",
                },
            )
        return SpanExportResult.SUCCESS


class Tracing:
    """Sets a process's tracer provider, which writes to a file in batches."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> TracerProvider:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(FileExporter(self.path)))
        trace.set_tracer_provider(provider)
        return provider


class FileTransport(Transport):
    """Writes Sentry's events to the file that the DSN's path names."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            append(Path(os.environ["SENTRY_FILE"]), json.loads(json.dumps(event, default=str)))


def breadcrumb(words: str) -> None:
    sentry_sdk.add_breadcrumb(message=words)
