import ast
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmesh.core.specs import spec_number
from taskmesh.errors import LocalProtocolError, RemoteProtocolError
from taskmesh.messages import frames
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import LaneRun, Run, Spec
from taskmesh.messages.slot_messages import SlotResults, SlotTasks
from taskmesh.serialize import payload
from taskmesh.shm import blob
from taskmesh.shm.blob import MEMFD_FROM
from tests.messages.samples import DIRECTIONS, MESSAGES, blob_of, messages

SPEC = Spec(b"Ros\0getpid", "os.getpid", queue="q", max_retries=3, tags=("gpu",))
IDS = [f"{type(message).__name__}-{i}" for i, (_, message) in enumerate(MESSAGES)]


def submit_of(*payloads):
    return m.Submit(1, [], [Run(5, 1, list(range(len(payloads))), list(payloads))])


def plain(message):
    """A message as plain data, Blobs by their bytes."""
    return msgspec.to_builtins(
        message,
        enc_hook=lambda blob: [bytes(part) for part in blob.parts] + [entry[2] for entry in blob.layout],
    )


@pytest.mark.parametrize(("decoder", "message"), MESSAGES, ids=IDS)
def test_every_message_comes_back_as_it_was(decoder, message):
    sent = frames.encode(message)

    received = decoder.decode([bytes(frame) for frame in sent])

    assert type(received) is type(message)
    assert plain(received) == plain(message)
    assert plain(decoder.decode([memoryview(bytes(frame)) for frame in sent])) == plain(message)


@pytest.mark.parametrize(("decoder", "message"), MESSAGES, ids=IDS)
def test_every_message_passes_a_socketpair_with_descriptors(decoder, message):
    before = len(blob._live)
    body, blobs = frames.encode_local(message)

    received = decoder.decode_local(body, [os.dup(one.to_fd()) for one in blobs])

    assert plain(received) == plain(message)
    del received
    for one in blobs:
        one.close()
    assert len(blob._live) == before


def test_lane_frames_begin_with_what_fences_them():
    header = frames.encode(m.Tasks(11, 12, 13, 14, 1.5, [], []))[0]

    assert list(msgspec.msgpack.decode(header))[:4] == ["type", "epoch", "session", "lane_seq"]


def test_a_blob_received_from_a_socket_goes_on_without_a_copy():
    message = submit_of(payload.dumps(b"x" * MEMFD_FROM))
    sent = [bytearray(frame) for frame in frames.encode(message)]

    received = frames.from_client.decode(sent)
    again = frames.encode(m.Tasks(1, 2, 3, 4, 0.0, [], [LaneRun(5, 7, 2, 1, [0], received.runs[0].payloads)]))

    assert [type(part) for part in again] == [bytes, memoryview, memoryview]
    assert again[2].obj is sent[2]
    assert payload.loads(received.runs[0].payloads[0]) == b"x" * MEMFD_FROM


def test_spec_numbers_are_the_same_everywhere_and_differ_by_content():
    number = spec_number(SPEC)

    assert number == spec_number(Spec(**msgspec.structs.asdict(SPEC)))
    assert number != spec_number(msgspec.structs.replace(SPEC, timeout=1.0))
    assert number != spec_number(msgspec.structs.replace(SPEC, keep=1.0))
    assert number != spec_number(msgspec.structs.replace(SPEC, shared="errors"))
    assert 0 <= number < 1 << 63
    assert number == 2885655513070477403, "stable from version to version, or a mesh of mixed versions breaks"


def test_only_bytes_and_blobs_are_payloads_on_the_way_out():
    with pytest.raises(LocalProtocolError, match="a object cannot be part"):
        frames.encode(submit_of(object()))
    with pytest.raises(LocalProtocolError, match="a object cannot be part"):
        frames.encode(submit_of(blob_of(4), object()))


# --- malformed input --------------------------------------------------------------------------------------


def raw(value):
    return msgspec.msgpack.encode(value)


def one(*payloads, seqs=(0,)):
    """A Submit's header with one run, whatever its payloads are."""
    return raw(
        {"type": 2, "number": 1, "specs": [], "runs": [[5, 1, list(seqs), list(payloads), "k", False]]}
    )


def ext(*layout, code=1):
    return msgspec.msgpack.Ext(code, raw(layout))


MALFORMED = {
    "no frame": [],
    "empty": [b""],
    "reserved byte": [b"\xc1"],
    "endless nesting": [b"\x91" * 100_000],
    "endless list": [b"\xdd\xff\xff\xff\xff"],
    "unknown message": [raw({"type": 99})],
    "message of another direction": [raw({"type": 61, "epoch": 1})],
    "missing fields": [raw({"type": 1})],
    "wrong type": [raw({"type": 2, "number": "x", "specs": [], "runs": []})],
    "bytes behind": [one(b"a") + b"\0"],
    "payload text": [one("text")],
    "payload number": [one(1)],
    "payload none": [one(None)],
    "payload list": [one([b"a"])],
    "payload time": [one(msgspec.msgpack.Ext(-1, b"1234"))],
    "payload time in parts": [one(msgspec.msgpack.Ext(-1, b"1234")), b"a"],
    "too few payloads": [one(b"a", seqs=(0, 1))],
    "negative counter": [one(b"a", seqs=(-1,))],
    "counter text": [one(b"a", b"b", seqs=(2**64 - 1, "x"))],
    "part missing": [one(ext((1, 0)))],
    "second part missing": [one(ext((1, 0), (1, 0))), b"a"],
    "part nobody announced": [one(b"a"), b"more"],
    "part too many": [one(ext((1, 0))), b"a", b"b"],
    "part too long": [one(ext((1, 0))), b"ab"],
    "unknown flag": [one(ext((1, 3))), b"a"],
    "negative size": [one(ext((-1, 0))), b"a"],
    "no layout": [one(ext()), b"a"],
    "layout of junk": [one(msgspec.msgpack.Ext(1, b"junk")), b"a"],
    "unknown extension": [one(ext((1, 0), code=2)), b"a"],
    "not a buffer": [None],
    "not bytes": ["text"],
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_frames_are_the_peers_fault(case):
    with pytest.raises(RemoteProtocolError):
        frames.from_client.decode(MALFORMED[case])


def spoiled(value, name, bad):
    """How often `name` occurs in a message's plain data; the last of them is set to `bad` there."""
    found = 0
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            if field == name:
                found += 1
                if not type(value).__struct_config__.frozen:
                    setattr(value, field, bad)
            else:
                found += spoiled(getattr(value, field), name, bad)
    elif isinstance(value, list):
        found += sum(spoiled(item, name, bad) for item in value)
    return found


@pytest.mark.parametrize(
    ("name", "bad", "least"),
    [
        ("seqs", [1, -2], 12),
        ("seq", -1, 4),
        ("cancels", [-1], 1),
        ("unstarted", [-1], 2),
        ("payloads", [b"a"], 5),
        ("payloads", [b"a", "text"], 6),
        ("payloads", [b"a", None], 6),
    ],
)
def test_counters_and_payloads_are_checked_wherever_they_stand(name, bad, least):
    spoilt = 0
    for direction in DIRECTIONS:
        for decoder, message in messages(direction):
            if (isinstance(message, SlotResults) and bad == [b"a"]) or not spoiled(message, name, bad):
                continue
            spoilt += 1
            with pytest.raises(RemoteProtocolError):
                decoder.decode(frames.encode(message))

    assert spoilt >= least


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (Run(1, 0, [], []), "without tasks"),
        (Run(1, 0, [2, 1, 2], [b""] * 3), "twice in one run"),
        (Run(1, 0, [1, 2], [b""] * 2, "key"), "with a key that is not one task"),
        (Run(1, 0, [1, 2], [b""] * 2, needs=[[0]]), "2 tasks with dependencies for 1"),
        (Run(1, 0, [1], [b""], when=3), "starts when 3, which is no condition"),
    ],
)
def test_runs_that_the_hub_could_not_enter_are_refused(run, why):
    with pytest.raises(RemoteProtocolError, match=why):
        frames.from_client.decode(frames.encode(m.Submit(1, [], [run])))


@pytest.mark.parametrize(("decoder", "message"), MESSAGES, ids=IDS)
def test_messages_of_another_direction_are_refused(decoder, message):
    for other, _ in DIRECTIONS.values():
        if other is not decoder:
            with pytest.raises(RemoteProtocolError):
                other.decode(frames.encode(message))


@given(st.data())
@settings(max_examples=60)
def test_a_malformed_local_message_closes_its_descriptors(data):
    before = sorted(os.listdir("/proc/self/fd"))
    made = blob_of(40, 50)
    body, blobs = frames.encode_local(
        SlotTasks(1, 2, [(5, SPEC)], [LaneRun(5, 7, 2, 1, [0, 1], [made, made])])
    )
    body = bytearray(body)
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    descriptors = [os.dup(one.to_fd()) for one in blobs[: data.draw(st.integers(0, 2))]]
    descriptors += [os.dup(made.to_fd()) for _ in range(data.draw(st.integers(0, 1)))]

    try:
        received = frames.to_slot.decode_local(body, descriptors)
    except RemoteProtocolError as error:
        del error
    else:
        del received
    made.close()

    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_that_is_too_short_or_missing_is_refused():
    made = blob_of(40, 50)
    body, _ = frames.encode_local(SlotTasks(1, 2, [], [LaneRun(5, 7, 2, 1, [0], [made])]))

    with pytest.raises(RemoteProtocolError, match="neither bytes nor a Blob"):
        frames.to_slot.decode_local(body, [])
    with pytest.raises(RemoteProtocolError, match="shorter than its layout"):
        frames.to_slot.decode_local(body, [os.memfd_create("empty")])
    with pytest.raises(RemoteProtocolError, match="more descriptors"):
        frames.to_slot.decode_local(body, [os.dup(made.to_fd()), os.dup(made.to_fd())])
    made.close()


def test_hub_side_modules_never_reach_a_pickle():
    seen, todo = set(), ["taskmesh.messages.frames"]
    while todo:
        name = todo.pop()
        if name in seen or not name.startswith("taskmesh"):
            continue
        seen.add(name)
        path = Path(*name.split(".")).with_suffix(".py")
        for node in ast.walk(ast.parse(path.read_text() if path.exists() else "")):
            if isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
        assert not {"pickle", "cloudpickle", "marshal", "taskmesh.serialize.values"} & set(todo), name

    assert "taskmesh.shm.blob" in seen
