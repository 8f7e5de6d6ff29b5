"""What fields of messages may hold: bounds that their types state, and decoders check."""

import math
from typing import Annotated, get_args, get_origin

import msgspec
import pytest

from taskmesh.errors import RemoteProtocolError
from taskmesh.messages import frames
from taskmesh.messages.runs import LONGEST_NAME, MOST_NAMES, Counter, Name, Number
from tests.messages.samples import MESSAGES

FOR_PEOPLE = {"reason", "error", "type_name", "text", "traceback", "history", "output"}
"""Texts that name nothing; nobody keeps them."""
PASSED_ON = {"worker", "kind"}
"""Names that are kept by nobody either."""
COUNTERS = {"seq", "seqs", "cancels", "unstarted"}


def shapes(kind, found):
    """Every struct that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind not in found:
            found.add(kind)
            for field in msgspec.structs.fields(kind):
                shapes(field.type, found)
    else:
        for part in get_args(kind):
            shapes(part, found)
    return found


SHAPES = sorted(shapes(tuple[*{type(message) for _, message in MESSAGES}], set()), key=str)


def bare(kind):
    """The plain types in a field's type that have no bounds."""
    if get_origin(kind) is Annotated and not get_args(get_args(kind)[0]):
        return set()
    inside = get_args(kind)
    return set().union(*map(bare, inside)) if inside else {kind}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_number_is_finite_and_every_name_has_an_end(shape):
    for field in msgspec.structs.fields(shape):
        unbounded = bare(field.type)
        assert float not in unbounded, field.name
        assert int not in unbounded or field.name not in COUNTERS, field.name
        assert str not in unbounded or field.name in FOR_PEOPLE | PASSED_ON, field.name


def places(value, kind, path=()):
    """Where values of a bounded type stand in a message."""
    if kind in {Counter, Number, Name}:
        yield path, kind
    elif isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(type(value)):
            yield from places(getattr(value, field.name), field.type, (*path, field.name))
    elif isinstance(value, list | tuple):
        kinds = get_args(get_args(kind)[0] if get_origin(kind) is Annotated else kind)
        inner = kinds if len(kinds) == len(value) and kinds[-1] is not ... else [kinds[0]] * len(value)
        for at, (item, each) in enumerate(zip(value, inner, strict=True)):
            yield from places(item, each, (*path, at))


def spoilt(value, path, bad):
    """The same as plain data, but for one place."""
    if not path:
        return bad
    here, *rest = path
    if isinstance(value, msgspec.Struct):
        changed = {here: spoilt(getattr(value, here), rest, bad)}
        return msgspec.structs.replace(value, **changed)
    items = [spoilt(item, rest, bad) if at == here else item for at, item in enumerate(value)]
    return type(value)(items)


BAD = {Counter: [-1], Number: [math.nan, math.inf, -math.inf], Name: ["x" * (LONGEST_NAME + 1)]}


def test_what_is_beyond_its_bounds_is_refused_wherever_it_stands():
    tried = 0
    for decoder, message in MESSAGES:
        for path, kind in places(message, type(message)):
            for bad in BAD[kind]:
                tried += 1
                with pytest.raises(RemoteProtocolError, match="malformed"):
                    decoder.decode(frames.encode(spoilt(message, path, bad)))

    assert tried > 300


@pytest.mark.parametrize("name", ["queues", "tags"])
def test_lists_of_names_have_an_end(name):
    decoder, hello = next((d, m) for d, m in MESSAGES if type(m).__name__ == "Hello")
    decoder.decode(frames.encode(msgspec.structs.replace(hello, **{name: ["q"] * MOST_NAMES})))

    with pytest.raises(RemoteProtocolError, match="length <= 1000"):
        decoder.decode(frames.encode(msgspec.structs.replace(hello, **{name: ["q"] * (MOST_NAMES + 1)})))
