"""Entries of a journal as bytes, and back. A payload in memory files is stored with their layout."""

from __future__ import annotations

import msgspec

from taskmesh.errors import ConfigError
from taskmesh.hub.journal.store import Changes
from taskmesh.messages.journal_entries import (
    KINDS,
    Entry,
    JournalChunk,
    JournalKept,
    JournalLetter,
    JournalOutcome,
    JournalSchedule,
    parts_of,
)
from taskmesh.messages.runs import Value
from taskmesh.shm.blob import Blob

_BLOB = 1
_DECODERS = {kind: msgspec.msgpack.Decoder(made) for kind, made in KINDS.items()}
_PACK = msgspec.msgpack.Encoder()
_PARTS = msgspec.msgpack.Decoder(tuple[list[tuple[int, int]], list[bytes]])


def _extension(obj: object) -> msgspec.msgpack.Ext:
    """Return a Blob's sizes, flags and bytes."""
    if not isinstance(obj, Blob):
        raise TypeError(f"no entry has a {type(obj).__name__}")
    layout = [(size, flag) for _, size, flag in obj.layout]
    return msgspec.msgpack.Ext(_BLOB, _PACK.encode((layout, [bytes(part) for part in obj.parts])))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_extension)


def encode(entry: Entry) -> bytes:
    return _ENCODER.encode(entry)


def decode(key: str, data: bytes) -> Entry:
    """Return the entry of a key.

    Raises:
        ConfigError: no such entry is known here: another version of taskmesh has written it.
    """
    try:
        kind, _ = parts_of(key)
        entry: Entry = _DECODERS[kind].decode(data)
        _restore_payloads(entry)
    except (ValueError, LookupError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"the journal has an entry that this version of taskmesh cannot read ({key}: {error}): "
            "start the version that wrote it, and let it finish its tasks"
        ) from None
    return entry


def _restore_payloads(entry: Entry) -> None:
    """Make Blobs of the payloads that were some."""
    if isinstance(entry, JournalChunk):
        for run in entry.runs:
            run.payloads = [_payload(payload) for payload in run.payloads]
    elif isinstance(entry, JournalLetter):
        entry.run.payloads = [_payload(payload) for payload in entry.run.payloads]
    elif isinstance(entry, Value):
        entry.payload = _payload(entry.payload)
    elif isinstance(entry, JournalSchedule):
        declaration = entry.declaration
        entry.declaration = msgspec.structs.replace(declaration, payload=_payload(declaration.payload))
    elif isinstance(entry, JournalKept | JournalOutcome) and entry.done is not None:
        entry.done.payloads = [_payload(payload) for payload in entry.done.payloads]


def _payload(payload: object) -> object:
    if not isinstance(payload, msgspec.msgpack.Ext):
        return payload
    layout, parts = _PARTS.decode(payload.data)
    return Blob.from_parts(parts, [flag for _, flag in layout][1:])


def changes_of(entries: dict[str, Entry | None]) -> Changes:
    """Return entries, None for those that are to go, as changes of a store."""
    changes = Changes()
    for key, entry in entries.items():
        if entry is None:
            changes.drop(key.encode())
        else:
            changes.put(key.encode(), encode(entry))
    return changes
