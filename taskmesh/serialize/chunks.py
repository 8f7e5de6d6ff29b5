"""Many values in one payload: one pickle where the items cannot harm each other, else one for each item.

One pickle for all is three times as fast, but a single item that cannot be rebuilt takes the others with it,
and what items share in it they share where they arrive: a list that one call changes is changed for the next.
So only flat items (numbers, text), and different containers of these, are pickled together. Classes and
functions that travel by value are written once for all items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from taskmesh.serialize.encoding import Definitions, decode, encode, load_definitions
from taskmesh.serialize.explanation import cannot_pickle, cannot_rebuild, first_failing
from taskmesh.serialize.namespaces import Scope
from taskmesh.serialize.values import FLAT, MARK, PASS, encode_plain, is_flat, type_name
from taskmesh.shm.files import Buffer

_SHALLOW: Final = frozenset((list, tuple, set, dict))


class BadItem:
    """In the place of an item that could not be pickled or rebuilt: why, and what to do."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


@dataclass(frozen=True, slots=True)
class Items:
    """Values on their way into one payload.

    Attributes:
        values: the items. nested: each is a tuple of arguments.
        extra: what travels along.
        what: how errors call an item.
    """

    values: Sequence[Any]
    extra: object
    what: str
    nested: bool


class PackedItem:
    """In the place of an item that was packed before the others came.

    Attributes:
        entry: the item's pickle, or the text of its error.
        buffers: its buffers, which nobody changes any more.
    """

    __slots__ = ("buffers", "entry")

    def __init__(self, value: object, what: str) -> None:
        self.entry: bytes | str
        taken: list[memoryview] = []
        try:
            self.entry = encode(value, taken)
        except PASS:
            raise
        except BaseException as error:  # noqa: BLE001
            self.entry = cannot_pickle(f"{what} (type {type_name(value)})", error, value)
        self.buffers = [unchanging(view) for view in taken]


def unchanging(view: memoryview) -> memoryview:
    """Return a buffer, or a copy of it if somebody may change it."""
    if type(view.obj) is bytes:
        return view
    kept = memoryview(bytearray(view))
    return kept.toreadonly() if view.readonly else kept


def snapshot(value: object, what: str) -> object:
    """Return a value that may change as it is now, for a chunk whose other items share nothing with it.

    Args:
        value: any value; one of a type in FLAT needs no snapshot.
        what: how an error calls it.
    """
    cls = type(value)
    if cls in _SHALLOW and _contents(value) <= FLAT:
        return value if cls is tuple else copy(value)
    return PackedItem(value, what)


def _contents(value: Any) -> set[type]:
    """Return the types of what is in a list, tuple, set or dict."""
    types = set(map(type, value))
    return types.union(map(type, value.values())) if type(value) is dict else types


def _are_separate(parts: list[Any]) -> bool:
    """Return True if values share nothing: they are flat, or different containers of what is flat."""
    types = set(map(type, parts))
    if not all(map(is_flat, types - _SHALLOW)):
        return False
    if types.isdisjoint(_SHALLOW):
        return True
    shallow = [part for part in parts if type(part) in _SHALLOW]
    changing = [id(part) for part in shallow if type(part) is not tuple]
    return len(set(changing)) == len(changing) and all(map(is_flat, set().union(*map(_contents, shallow))))


def pack_items(items: Items, buffers: list[memoryview]) -> bytes:
    """The pickle of all items; never fails because of one of them. `buffers` takes the out-of-band ones."""
    values = items.values if type(items.values) is list else list(items.values)
    if _are_separate([part for item in values for part in item] if items.nested else values):
        return encode((values, items.extra), buffers)
    return _pack_apart(items, buffers)


def _pack_apart(items: Items, buffers: list[memoryview]) -> bytes:
    definitions = Definitions(all_functions=True)
    entries, counts = _entries(items, buffers, lambda value, taken: definitions.encode(value, taken) + MARK)
    try:
        shared = definitions.dump()
    except PASS:
        raise
    except BaseException:  # noqa: BLE001 -- a definition that cannot be pickled: find out whose it is
        buffers.clear()
        entries, counts = _entries(items, buffers, encode)
        shared = b""
    own: list[memoryview] = []
    data = encode((entries, counts, shared, items.extra), own)
    buffers[:0] = own  # before the items' buffers, since it is rebuilt before them
    return data


def _entries(
    items: Items, buffers: list[memoryview], by_value: Callable[[object, list[memoryview]], bytes]
) -> tuple[list[bytes | str], list[int]]:
    """Each item's pickle (or the text of its error), and how many buffers it has."""
    entries: list[bytes | str] = []
    counts: list[int] = []
    for value in items.values:
        before = len(buffers)
        if type(value) is PackedItem:
            entries.append(value.entry)
            buffers += value.buffers
            counts.append(len(value.buffers))
            continue
        try:
            data = encode_plain(value, buffers)
            entries.append(by_value(value, buffers) if data is None else data)
        except PASS:
            raise
        except BaseException as error:  # noqa: BLE001
            entries.append(cannot_pickle(*_blamed(items, value, error)))
        counts.append(len(buffers) - before)
    return entries, counts


def _blamed(items: Items, value: Any, error: BaseException) -> tuple[str, BaseException, Any]:
    """An item for an error text, with its value: of argument tuples, the argument that is to blame."""
    if not items.nested:
        return f"{items.what} (type {type_name(value)})", error, value
    found, arg = first_failing(("an argument", arg) for arg in value)
    return (f"{items.what} (type {type_name(arg)})" if found else items.what), error, arg


def unpack_items(data: Buffer, buffers: Iterable[Buffer], what: str) -> tuple[list[Any], Any]:
    """(items, extra) of what `pack_items` packed; an item that fails is a BadItem.

    Raises:
        Exception: the definitions that the items share, or what travels along, cannot be rebuilt.
    """
    rest = iter(buffers)
    packed = decode(data, rest)
    if len(packed) == 2:
        return packed  # type: ignore[no-any-return]
    entries, counts, definitions, extra = packed
    shared = load_definitions(definitions) if definitions else None
    values = [
        _unpack(entry, list(islice(rest, count)), shared, what)
        for entry, count in zip(entries, counts, strict=True)
    ]
    return values, extra


def _unpack(entry: bytes | str, buffers: list[Buffer], shared: Scope | None, what: str) -> Any:
    if isinstance(entry, str):
        return BadItem(entry)
    try:
        return decode(entry, buffers, shared)
    except PASS:
        raise
    except BaseException as error:  # noqa: BLE001
        return BadItem(cannot_rebuild(what, error))
