"""Middleware for OpenTelemetry, Sentry and structlog, with the real libraries."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from taskmesh import Mesh, Retry, task
from taskmesh.integrations.opentelemetry import OpenTelemetry
from taskmesh.integrations.sentry import Sentry
from taskmesh.integrations.structlog import StructlogContext
from tests.integrations.observed import FileTransport, Tracing, breadcrumb, read

WAIT_S = 30


@task(name="child")
def child() -> int:
    return os.getpid()


@task(name="parent", queue="default")
def parent() -> int:
    return child.submit().result()


@task(name="fails", retries=Retry(1, backoff=0.01))
def fails() -> None:
    breadcrumb("before it fails")
    raise LookupError("nothing there")


# --- OpenTelemetry


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[TracerProvider]:
    """This program's provider, which writes to a file as the slots' do."""
    before = trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE
    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE = None, type(before[1])()
    provider = Tracing(tmp_path / "spans")()
    yield provider
    provider.shutdown()
    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE = before


def spans(provider: TracerProvider, path: Path) -> dict[str, list[dict[str, Any]]]:
    """Spans by name and task."""
    provider.force_flush()
    found: dict[str, list[dict[str, Any]]] = {}
    for span in read(path):
        found.setdefault(f"{span['name']} {span['attributes'].get('taskmesh.task.name')}", []).append(span)
    return found


def test_a_task_and_its_child_are_in_the_trace_of_the_request(provider, tmp_path):
    path = tmp_path / "spans"
    with (
        Mesh(workers=2, middleware=[OpenTelemetry(Tracing(path))]) as mesh,
        trace.get_tracer("test").start_as_current_span("request") as request,
    ):
        future = mesh.submit(parent)
        future.result(WAIT_S)

    found = spans(provider, path)
    [sent], [ran] = found["send default parent"], found["process default parent"]
    [child_sent], [child_ran] = found["send default child"], found["process default child"]
    assert {span["trace"] for span in (sent, ran, child_sent, child_ran)} == {request.context.trace_id}
    assert [sent["parent"], ran["parent"]] == [request.context.span_id, sent["id"]]
    assert [child_sent["parent"], child_ran["parent"]] == [ran["id"], child_sent["id"]]
    assert (sent["kind"], ran["kind"], ran["links"]) == ("PRODUCER", "CONSUMER", [sent["id"]])
    assert len({os.getpid(), sent["pid"], ran["pid"], child_ran["pid"]}) == 3
    assert ran["attributes"]["messaging.message.id"] == sent["attributes"]["messaging.message.id"]
    assert ran["attributes"]["messaging.message.id"] == future.task_id


def test_attempts_are_siblings_and_have_their_errors(provider, tmp_path):
    path = tmp_path / "spans"
    with (
        Mesh(workers=1, middleware=[OpenTelemetry(Tracing(path))]) as mesh,
        trace.get_tracer("test").start_as_current_span("request"),
        pytest.raises(LookupError),
    ):
        mesh.submit(fails).result(WAIT_S)

    found = spans(provider, path)
    [sent] = found["send default fails"]
    attempts = found["process default fails"]
    assert [span["parent"] for span in attempts] == [sent["id"]] * 2
    assert sorted(span["attributes"]["taskmesh.task.attempt"] for span in attempts) == [1, 2]
    assert [span["attributes"]["error.type"] for span in attempts] == ["LookupError"] * 2
    assert all("nothing there" in span["error"] for span in attempts)


def test_a_map_has_one_span_where_it_is_submitted_and_one_a_chunk(provider, tmp_path):
    path = tmp_path / "spans"
    with (
        Mesh(workers=1, middleware=[OpenTelemetry(Tracing(path))]) as mesh,
        trace.get_tracer("test").start_as_current_span("request"),
    ):
        assert list(mesh.map(abs, range(6), chunksize=3)) == list(range(6))

    found = spans(provider, path)
    [sent] = found["send default builtins.abs"]
    ran = found["process default builtins.abs"]
    assert [span["attributes"]["messaging.batch.message_count"] for span in (sent, *ran)] == [6, 3, 3]
    assert {span["parent"] for span in ran} == {sent["id"]}


def test_without_a_sampled_span_nothing_is_recorded(provider, tmp_path):
    path = tmp_path / "spans"
    unsampled = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")
    with Mesh(workers=1, middleware=[OpenTelemetry(Tracing(path))]) as mesh:
        mesh.submit(child).result(WAIT_S)
        with unsampled.start_as_current_span("request") as request:
            context = mesh.submit(lambda: trace.get_current_span().get_span_context().trace_id)
            assert context.result(WAIT_S) == request.get_span_context().trace_id

    assert not spans(provider, path)


# --- Sentry


def test_an_attempt_that_fails_is_an_event_with_its_task_and_breadcrumbs(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTRY_FILE", str(tmp_path / "events"))
    sentry = Sentry(
        dsn="http://key@127.0.0.1/1",
        transport=FileTransport,
        default_integrations=False,
        auto_session_tracking=False,
    )
    with Mesh(workers=1, middleware=[sentry]) as mesh:
        future = mesh.submit(fails)
        assert isinstance(future.exception(WAIT_S), LookupError)
        assert isinstance(mesh.submit(divmod, 1).exception(WAIT_S), TypeError)
        mesh.submit(child).result(WAIT_S)

    first, second, other = read(tmp_path / "events")
    assert [event["contexts"]["taskmesh"]["attempt"] for event in (first, second, other)] == [1, 2, 1]
    assert first["tags"] == {"taskmesh.task": "fails", "taskmesh.queue": "default"}
    assert first["contexts"]["taskmesh"]["id"] == future.task_id
    assert [event["breadcrumbs"]["values"][0]["message"] for event in (first, second)] == [
        "before it fails"
    ] * 2
    assert "breadcrumbs" not in other or not other["breadcrumbs"]["values"]
    [error] = first["exception"]["values"]
    assert (error["type"], error["value"]) == ("LookupError", "nothing there")
    assert error["stacktrace"]["frames"][-1]["function"] == "fails"


# --- structlog


def test_the_task_and_what_the_submitter_has_bound_are_in_each_line(tmp_path):
    def log() -> dict[str, Any]:
        return structlog.contextvars.merge_contextvars(None, "info", {"event": "here"})

    with Mesh(workers=1, middleware=[StructlogContext("request_id")]) as mesh:
        bound = structlog.contextvars.bind_contextvars(request_id=7, other="not sent")
        future = mesh.submit(task(name="log")(log))
        structlog.contextvars.reset_contextvars(**bound)
        found = future.result(WAIT_S)
        assert mesh.submit(log).result(WAIT_S).keys() == {"event", "task_id", "task_name", "task_attempt"}

    assert found == {
        "event": "here",
        "request_id": "7",
        "task_id": future.task_id,
        "task_name": "log",
        "task_attempt": 1,
    }
