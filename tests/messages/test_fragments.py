"""Large messages in fragments: cut, lost, mixed, doubled, forged, and put together again within budgets."""

import os
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmesh.errors import RemoteProtocolError
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.fragments import FRAME_COST, STALE, Assembler, Cutter, NoRoom, is_fragment
from taskmesh.messages.frames import encode, from_client
from taskmesh.messages.runs import Run
from taskmesh.shm.blob import BYTES, PRIVATE, Blob

SIZE = 10
FRAMES = st.lists(st.binary(max_size=45), min_size=1, max_size=6).filter(lambda frames: frames[0])


def arrived(fragments):
    """Returns the frames as they leave the other end's socket."""
    return [[bytes(frame) for frame in fragment] for fragment in fragments]


def whole(assembler, fragments, now=0.0, **where):
    """The last answer to fragments, each of which but the last completes nothing."""
    *first, last = arrived(fragments)
    assert [assembler.whole(fragment, now, **where) for fragment in first] == [None] * len(first)
    return assembler.whole(last, now, **where)


def flat(frames):
    return b"".join(map(bytes, frames))


@given(FRAMES)
def test_what_is_cut_comes_whole_and_no_fragment_is_larger_than_it_may_be(frames):
    fragments = Cutter(1, SIZE).cut(frames)

    found = whole(Assembler(), fragments)

    assert found[0] == frames[0]
    assert flat(found) == flat(frames)
    if sum(map(len, frames)) <= SIZE:
        assert fragments == [frames]
    else:
        assert all(is_fragment(fragment) for fragment in fragments)
        assert all(sum(map(len, fragment[1:])) <= SIZE for fragment in fragments)
        assert len(fragments) <= 2 * sum(map(len, frames)) / SIZE + 1


@given(st.integers(1, 70), st.lists(st.integers(1, 70), max_size=3), st.integers(1, 40))
def test_a_payload_is_what_it_was_also_when_it_is_cut_twice(first, sizes, other):
    """A hub sends on what it gets, without looking, in fragments of its own."""
    parts = [bytes([number]) * size for number, size in enumerate([first, *sizes])]
    blob = Blob.from_parts(parts, [PRIVATE, BYTES, PRIVATE][: len(parts) - 1])
    message = m.Submit(1, [], [Run(7, 0, [1], [blob])])

    came = from_client.decode(whole(Assembler(), Cutter(1, SIZE).cut(encode(message))))
    again = from_client.decode(whole(Assembler(), Cutter(2, other).cut(encode(came))))

    (payload,) = again.runs[0].payloads
    assert payload.layout == blob.layout
    assert [bytes(part) for part in payload.reader_parts()] == parts
    filed = Blob.from_fd(os.dup(payload.to_fd()), payload.layout)
    assert [bytes(part) for part in filed.parts] == parts
    assert [bytes(part) for part in payload.parts] == parts


def test_a_large_part_in_pieces_can_be_written_to():
    pieces = [bytes([number]) * (4 << 20) for number in range(9)]
    blob = Blob.from_pieces([[b"pickle"], pieces], [PRIVATE])

    head, part = blob.reader_parts()

    assert head == b"pickle"
    assert bytes(part) == b"".join(pieces)
    part[0] = 7
    assert blob.pieces[1][0][0] == 0


@given(st.lists(FRAMES, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_messages_of_several_senders_may_come_mixed(messages, chance: random.Random):
    waiting = [arrived(Cutter(number, SIZE).cut(frames)) for number, frames in enumerate(messages)]
    assembler, found = Assembler(), []
    while any(waiting):
        queue = chance.choice([queue for queue in waiting if queue])
        if (frames := assembler.whole(queue.pop(0), 0.0)) is not None:
            found.append(flat(frames))

    assert sorted(found) == sorted(map(flat, messages))
    assert (assembler.count, assembler.size) == (0, 0)


@given(st.lists(FRAMES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_of_what_is_lost_or_doubled_nothing_wrong_comes(messages, chance: random.Random):
    cutter = Cutter(1, SIZE)
    fragments = [each for frames in messages for each in arrived(cutter.cut(frames))]
    heard = [each for each in fragments for _ in range(chance.choice((0, 1, 1, 1, 2)))]
    assembler = Assembler()

    for fragment in heard:
        found = assembler.whole(fragment, 0.0)
        assert found is None or flat(found) in map(flat, messages)

    assert assembler.whole([b"plain"], 0.0) == [b"plain"]


@given(st.binary(min_size=40, max_size=40), st.lists(st.binary(max_size=20), max_size=4))
def test_whatever_a_mark_says_it_is_refused_or_believed_within_bounds(numbers, pieces):
    assembler = Assembler(200, 200, 200)
    frames = [b"\xc1TM\x01" + numbers, *pieces]
    try:
        found = assembler.whole(frames, 0.0)
    except RemoteProtocolError:
        found = None
    assert assembler.size <= 200 + 4 * FRAME_COST
    assert found is None or found == frames or flat(found) == flat(pieces)


@pytest.mark.parametrize(
    ("offset", "total", "header", "piece"),
    [(0, 10, 0, b"x"), (0, 10, 11, b"x"), (0, 1, 1, b"xx"), (1 << 63, 1 << 62, 1, b"x"), (0, 10, 1, b"")],
)
def test_a_mark_that_makes_no_sense_is_refused(offset, total, header, piece):
    mark = struct.pack(">4sQQQQI", b"\xc1TM\x01", 1, 1, offset, total, header)
    assembler = Assembler()

    with pytest.raises(RemoteProtocolError):
        assembler.whole([mark, piece], 0.0)

    assert assembler.count == 0


def test_a_header_has_to_end_where_a_frame_does():
    fragments = arrived(Cutter(1, SIZE).cut([b"header", bytes(20)]))
    for fragment in fragments:
        fragment[0] = fragment[0][:-1] + b"\x07"

    with pytest.raises(RemoteProtocolError, match="header"):
        whole(Assembler(), fragments)


def begin(assembler, sender, size, **where):
    """All of a message of so many bytes but the last fragment; returns that."""
    *first, last = arrived(Cutter(sender, SIZE).cut([b"head", bytes(size)]))
    for fragment in first:
        assert assembler.whole(fragment, 0.0, **where) is None
    return last


def test_one_key_has_its_share_and_others_have_theirs():
    assembler = Assembler(6000, 3000)
    begin(assembler, 1, 300, user="a")
    with pytest.raises(NoRoom):
        begin(assembler, 2, 300, user="a")

    last = begin(assembler, 3, 300, user="b")

    assert assembler.whole(last, 0.0, user="b") is not None
    assert assembler.count == 1


def test_all_keys_together_have_so_much():
    assembler = Assembler(3000, 3000)
    last = begin(assembler, 1, 250, user="a")
    begin(assembler, 1, 100, user="b")
    with pytest.raises(NoRoom):
        begin(assembler, 1, 250, user="c")

    assert assembler.count == 2
    assert assembler.whole(last, 0.0, user="a") is not None, "whoever came first ends"


def test_a_message_alone_comes_however_large_it_is_up_to_the_largest():
    assembler = Assembler(100, 100, 5000)
    assert whole(assembler, Cutter(1, SIZE).cut([b"head", bytes(500)])) is not None

    with pytest.raises(NoRoom):
        begin(assembler, 1, 5001)
    assert (assembler.count, assembler.size) == (0, 0)


def test_frames_without_content_cost_too():
    first, *_ = arrived(Cutter(1, SIZE).cut([b"head", bytes(100)]))
    assembler = Assembler(1000, 1000, 1000)

    with pytest.raises(NoRoom):
        assembler.whole([*first, *[b""] * 100], 0.0)


def test_what_of_a_refused_message_comes_later_is_ignored():
    assembler = Assembler(0, 0, 100)
    fragments = arrived(Cutter(1, SIZE).cut([b"head", bytes(200)]))
    with pytest.raises(NoRoom):
        assembler.whole(fragments[0], 0.0)

    assert [assembler.whole(fragment, 0.0) for fragment in fragments[1:]] == [None] * (len(fragments) - 1)


def test_half_a_message_goes_away_with_its_link_or_in_time():
    assembler = Assembler()
    begin(assembler, 1, 50, user="a", link=b"one")
    last = begin(assembler, 1, 50, user="a", link=b"two")

    assembler.forget(b"one")
    assert assembler.count == 1
    assert assembler.drop_stale(STALE) == 0
    assert assembler.drop_stale(STALE + 1) == 1
    assert assembler.whole(last, 0.0, user="a", link=b"two") is None
    assert assembler.size == 0
