"""Entries of a journal as bytes and back."""

import msgspec
import pytest

from taskmesh.errors import ConfigError
from taskmesh.hub.journal.entries import changes_of, decode, encode
from taskmesh.messages.journal_entries import (
    CHUNK,
    ENDS,
    OUTCOME,
    SPEC,
    VALUE,
    Ends,
    JournalChunk,
    JournalOutcome,
    key_of,
)
from taskmesh.messages.runs import DoneRun, Failed, Run, Spec, Value
from taskmesh.shm.blob import BYTES, Blob

TORN = ("v/1", msgspec.msgpack.encode([1, msgspec.msgpack.Ext(1, b"no layout"), "f", 2]))
RUN = Run(7, 1, [1, 2], [b"one", b"two"], needs=[[5], [6]], delay=2.5)


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        (CHUNK, JournalChunk(1 << 63, "alice", "a program", 1e9, [RUN])),
        (ENDS, Ends([1, 2, 5])),
        (SPEC, Spec(b"code", "f", max_retries=3, tags=("gpu",))),
        (OUTCOME, JournalOutcome(DoneRun(7, 1, 2, "pool/0", [5], [b"payload"], 0.5), None)),
        (OUTCOME, JournalOutcome(None, Failed(1, 5, 1, "exception", text="no"))),
        (VALUE, Value(5, b"payload", "f", 2)),
        (VALUE, Value(5, failed=Failed(0, 5, 1, "exception", text="no"))),
    ],
)
def test_an_entry_is_read_as_it_was_written(kind, entry):
    assert decode(key_of(kind, 1 << 100), encode(entry)) == entry


def test_a_payload_in_parts_is_read_in_its_parts():
    parts, flags = [b"pickle", b"x" * 100_000, b""], [0, BYTES]
    run = Run(7, 0, [1], [Blob.from_parts(parts, flags)])
    for kind, entry in ((CHUNK, JournalChunk(1, "", "", 0.0, [run])), (VALUE, Value(1, run.payloads[0]))):
        again = decode(key_of(kind, 1), encode(entry))
        payload = again.payload if isinstance(again, Value) else again.runs[0].payloads[0]
        assert [bytes(part) for part in payload.parts] == parts
        assert payload.layout == run.payloads[0].layout


@pytest.mark.parametrize(
    ("key", "data"), [("x/1", b""), ("c", b""), ("c/g", b""), ("c/1", b"\xc1"), ("e/1", b"\x01"), TORN]
)
def test_what_cannot_be_read_is_refused_with_the_cure(key, data):
    with pytest.raises(ConfigError, match="start the version that wrote it"):
        decode(key, data)


def test_changes_go_to_the_store_in_bytes():
    changes = changes_of({"e/1": Ends([1]), "c/1": None})
    assert (changes.puts, changes.drops) == ({b"e/1": encode(Ends([1]))}, {b"c/1"})
