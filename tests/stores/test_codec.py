"""Kept outcomes as bytes: what goes in comes out, and whatever was edited is refused."""

import random

import pytest

from taskmesh.errors import RemoteProtocolError
from taskmesh.shm.blob import Blob
from taskmesh.stores.codec import from_bytes, place, to_bytes
from taskmesh.wire.runs import Kept
from tests.stores.outcomes import failure, success

GOOD = to_bytes(success("k", b"payload"))


@pytest.mark.parametrize("kept", [success("k", b"payload"), success("\u00fc", b""), failure("k")])
def test_there_and_back(kept):
    assert from_bytes(to_bytes(kept)) == kept


def test_a_large_payload_keeps_its_parts():
    parts = [b"pickle", bytes(range(256)) * 1000, bytearray(70_000)]

    (payload,) = from_bytes(to_bytes(success("k", Blob.from_parts(parts, [0, 2])))).done[0].payloads

    assert [bytes(part) for part in payload.parts] == [bytes(part) for part in parts]
    assert [flag for _, _, flag in payload.layout] == [1, 0, 2]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no outcome"),
        (b"hello", "no outcome"),
        (b"\x80\x05cos\nsystem\n.", "no outcome"),
        (GOOD[:3] + b"\x02" + GOOD[4:], "version 2, and this hub reads version 1"),
        (GOOD[:15], "cut short"),
        (GOOD[:-1], "bytes where"),
        (GOOD + b"x", "bytes where"),
        (GOOD[:-1] + b"\xff", "checksum"),
        (GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:], "cut short"),
        (to_bytes(Kept("n", "k", 60.0, [], [])), "not the outcome of one task"),
        (to_bytes(Kept("n", "k", 60.0, success("k").done, failure("k").failed)), "not the outcome of one"),
        (to_bytes(Kept("n", "", 60.0, success("k").done, [])), "nobody keeps"),
        (to_bytes(success("k", keep=0.0)), "nobody keeps"),
        (to_bytes(success("k", keep=float("inf"))), "Expected `float` <="),
        (to_bytes(success("k" * 2000)), "`str` of length <= 1024"),
        (to_bytes(Kept("n", "k", 60.0, [*success("k").done, *success("k").done], [])), "one task"),
        (to_bytes(success("k", 7)), "Expected `bytes | ext`"),
    ],
)
def test_what_is_no_outcome_is_refused(data, why):
    with pytest.raises(RemoteProtocolError, match=why):
        from_bytes(data)


def test_no_edit_raises_anything_else():
    chance = random.Random(17)
    for _ in range(20_000):
        data = bytearray(GOOD)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            from_bytes(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))
        except RemoteProtocolError:
            continue


def test_places_differ_by_name_and_key():
    pairs = [("a", "b"), ("ab", ""), ("", "ab"), ("b", "a")]
    places = {place(Kept(name, key, 1.0, [], [])) for name, key in pairs}

    assert len(places) == len(pairs)
    assert {len(one) for one in places} == {40}
