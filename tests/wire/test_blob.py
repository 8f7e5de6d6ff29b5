import mmap
import os
import pickle

import pytest

from taskmesh.wire import blob as blobs
from taskmesh.wire.blob import BYTES, MEMFD_FROM, PRIVATE, READONLY, Blob, layout_of, live_descriptors

PICKLE = b"p" * 100


def test_layout_aligns_every_part_for_arrays():
    layout = layout_of([100, 0, 64, 1], [READONLY, PRIVATE, BYTES, PRIVATE])

    assert layout == [(0, 100, READONLY), (128, 0, PRIVATE), (128, 64, BYTES), (192, 1, PRIVATE)]


@pytest.mark.parametrize("portable", [False, True])
def test_parts_go_through_a_file_unchanged(portable, monkeypatch):
    monkeypatch.setenv("TASKMESH_OS", "portable" if portable else "")
    parts = [PICKLE, bytes(range(256)) * 300, b"", b"end"]
    made = Blob.from_parts(parts, [PRIVATE, READONLY, BYTES])

    received = Blob.from_fd(os.dup(made.to_fd()), made.layout)

    assert [bytes(part) for part in received.parts] == parts
    assert [bytes(part) for part in received.reader_parts()] == parts
    assert len(received) == len(made) == sum(map(len, parts))


def test_what_a_reader_gets_follows_the_flags():
    parts = [PICKLE, b"a" * 10, b"b" * 10, b"c" * 10]
    heap = Blob.from_parts(parts, [PRIVATE, READONLY, BYTES])
    file = Blob.from_fd(os.dup(heap.to_fd()), heap.layout)

    for blob in (Blob.from_parts(parts, [PRIVATE, READONLY, BYTES]), file):
        first, private, readonly, data = blob.reader_parts()

        assert memoryview(first).readonly
        assert not memoryview(private).readonly
        assert memoryview(readonly).readonly
        assert type(data) is bytes


@pytest.mark.parametrize("size", [1000, blobs.MAP_FROM + 5])
def test_writing_into_a_part_is_seen_by_nobody_else(size):
    made = Blob.pack([PICKLE, bytes(size)], [PRIVATE])
    made.to_fd()

    first, second = made.reader_parts()[1], made.reader_parts()[1]
    memoryview(first)[0] = 7

    assert second[0] == 0
    assert made.reader_parts()[1][0] == 0


def test_received_buffers_are_not_copied():
    frame = bytearray(100_000)

    part = Blob.from_parts([PICKLE, memoryview(frame)]).reader_parts()[1]
    part[3] = 9

    assert frame[3] == 9


def test_pack_copies_so_that_later_changes_are_not_seen():
    for size in (1000, MEMFD_FROM):
        source = bytearray(size)

        made = Blob.pack([PICKLE, memoryview(source)], [PRIVATE])
        source[0] = 1

        assert bytes(made.parts[1])[0] == 0


def test_large_payloads_take_a_file_at_once_unless_told_not_to():
    large = bytes(MEMFD_FROM)

    assert Blob.pack([large], []).fd is not None
    assert Blob.pack([large[: MEMFD_FROM // 2]], []).fd is None
    assert Blob.pack([large], [], memfd=False).fd is None


def test_descriptors_are_bounded_and_payloads_go_on_on_the_heap(monkeypatch):
    before = live_descriptors()
    monkeypatch.setattr(blobs, "MAX_LIVE", before + 3)

    made = [Blob.pack([bytes(MEMFD_FROM)], []) for _ in range(6)]
    received = [Blob.from_fd(os.dup(made[0].to_fd()), made[0].layout) for _ in range(3)]

    assert [blob.fd is not None for blob in made] == [True] * 3 + [False] * 3
    assert live_descriptors() == before + 3
    assert [blob.fd for blob in received] == [None] * 3
    assert all(bytes(blob.parts[0]) == bytes(MEMFD_FROM) for blob in made + received)
    del made, received
    assert live_descriptors() == before


def test_no_descriptor_left_means_the_heap(monkeypatch):
    def refuse():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(blobs, "_anonymous_file", refuse)

    made = Blob.pack([bytes(MEMFD_FROM)], [])

    assert made.fd is None
    assert bytes(made.parts[0]) == bytes(MEMFD_FROM)
    with pytest.raises(OSError, match="Too many"):
        made.to_fd()


def test_a_descriptor_is_closed_with_the_last_reference():
    made = Blob.pack([bytes(MEMFD_FROM)], [])
    fd = made.fd
    part = made.parts[0]

    del made

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert part[5] == 0, "what was looked at stays mapped"


def test_close_is_idempotent_and_ends_reading():
    made = Blob.pack([bytes(MEMFD_FROM)], [])

    made.close()
    made.close()

    with pytest.raises(ValueError, match="closed"):
        _ = made.parts


def test_a_file_shorter_than_its_layout_is_refused_and_closed():
    fd = os.memfd_create("short")
    os.write(fd, b"x" * 10)

    with pytest.raises(OSError, match="shorter"):
        Blob.from_fd(fd, [(0, 11, READONLY)])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_that_shrinks_later_is_an_error_and_no_hang():
    made = Blob.pack([bytes(MEMFD_FROM)], [])
    os.ftruncate(made.fd, 5)

    with pytest.raises(OSError, match="became shorter"):
        made.reader_parts()


def test_a_blob_is_never_pickled():
    with pytest.raises(TypeError, match="payload already"):
        pickle.dumps(Blob.from_parts([b"x"]))


def test_parts_of_a_file_are_views_of_one_private_mapping():
    made = Blob.pack([bytes(MEMFD_FROM), b"y"], [PRIVATE])

    first, second = made.parts

    assert isinstance(first.obj, mmap.mmap)
    assert first.obj is second.obj
    assert first.readonly
