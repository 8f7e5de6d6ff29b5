"""Every field of a message to the hub that names something says what, and who may name it."""

import typing

import msgspec
import pytest

from taskmesh.hub.machine.owners import NAMED
from taskmesh.messages import mesh_messages as m
from taskmesh.messages import runs as r
from taskmesh.messages import schedules as s

NAMELESS = {
    m.ClientHello: "epoch first protocol python name credit pickle cloudpickle link operator",
    m.Submit: "runs epoch whole values",
    m.ResultAck: "epoch",
    m.ClientBeat: "epoch",
    m.ClientBye: "cancel",
    m.Query: "number what limit",
    m.Command: "number verb",
    m.Fulfil: "number payload keep failed",
    m.PutSchedule: "number declaration",
    m.DropSchedule: "number",
    m.SinkReport: "credit closed sent",
    r.Run: "payloads again delay tried when at rerun age",
    r.Value: "payload name attempt failed is_kept",
    r.Spec: "function priority timeout hard_timeout expires max_retries backoff factor max_backoff jitter "
    "retry_filter acks on_client_loss codec kind keep shared limits durable detach ignore_result headers "
    "log_level stream_logs source",
    r.LimitRule: "count window smooth keyed",
    s.Declaration: "timing spec payload in_code",
    s.Timing: "cron period tz overlap catchup",
    m.Hello: "number slots epoch inventory protocol python host pid pickle cloudpickle",
    m.Results: "epoch done failed returned echo held lag told",
    m.Beat: "epoch received acked sent running state slots",
    m.Bye: "epoch sent",
    m.Misrouted: "epoch",
    m.SlotGone: "epoch",
    m.PoolNeedSpec: "epoch",
    r.DoneRun: "worker payloads elapsed returns",
    r.Failed: "kind type_name text traceback pickled retryable retry_after worker history returns output",
    r.Held: "bound returns limits",
    r.Progress: "done total worker elapsed lines",
    r.LogLine: "time level logger text path line",
}
"""Fields that hold a value, an amount, a text for people, or shapes whose own fields stand here."""


def shapes() -> list[type]:
    """All structs in what clients and pools say, found by the types of their fields."""
    found: list[type] = []
    left: list[object] = [*typing.get_args(m.ClientMessage), *typing.get_args(m.PoolMessage)]
    while left:
        one = left.pop()
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            if one not in found:
                found.append(one)
                left += [field.type for field in msgspec.structs.fields(one)]
        else:
            left += typing.get_args(one)
    return found


@pytest.mark.parametrize("shape", shapes(), ids=lambda shape: shape.__name__)
def test_each_field_names_something_of_somebody_or_nothing(shape):
    fields = set(shape.__struct_fields__)
    named, nameless = {field for of, field in NAMED if of is shape}, set(NAMELESS.get(shape, "").split())

    assert fields - named - nameless == set(), "say in core.hub.owners.NAMED who may name it"
    assert named | nameless <= fields
    assert not named & nameless


def test_the_tables_speak_of_these_shapes_only():
    assert {of for of, _ in NAMED} | set(NAMELESS) <= set(shapes())
