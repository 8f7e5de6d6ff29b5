import errno
import mmap
import os
import pickle

import pytest

from taskmesh.errors import TaskTimeout
from taskmesh.shm import blob as blobs
from taskmesh.shm import files
from taskmesh.shm.blob import BYTES, MEMFD_FROM, PRIVATE, READONLY, Blob, layout_of
from tests.messages.samples import packed, send

PICKLE = b"p" * 100


def test_layout_aligns_every_part_for_arrays():
    layout = layout_of([100, 0, 64, 1], [READONLY, PRIVATE, BYTES, PRIVATE])

    assert layout == [(64, 100, READONLY), (192, 0, PRIVATE), (192, 64, BYTES), (256, 1, PRIVATE)]


@pytest.mark.parametrize("unlinked", [False, True])
def test_parts_go_through_a_file_unchanged(unlinked, monkeypatch):
    if unlinked:
        monkeypatch.delattr(os, "memfd_create")
    parts = [PICKLE, bytes(range(256)) * 300, b"", b"end"]
    made = Blob.from_parts(parts, [PRIVATE, READONLY, BYTES])

    received = Blob.from_fd(os.dup(made.to_fd()), made.layout)

    assert [bytes(part) for part in received.parts] == parts
    assert [bytes(part) for part in received.reader_parts()] == parts
    assert len(received) == len(made) == sum(map(len, parts))


@pytest.mark.parametrize("size", [10, blobs.MAP_FROM])
def test_what_a_reader_gets_follows_the_flags(size):
    parts = [PICKLE, b"a" * size, b"b" * size, b"c" * size]
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


def received(count, size=blobs.MAP_FROM, flag=PRIVATE):
    """As many received payloads, each with one part of that size."""
    return [send(Blob.pack([PICKLE, bytes([number]) * size], [flag])) for number in range(count)]


def is_mapped(part):
    return isinstance(memoryview(part).obj, mmap.mmap)


def test_large_parts_are_mapped_and_what_is_written_there_nobody_else_sees():
    [large] = received(1)
    [small] = received(1, blobs.MAP_FROM // 2)

    part = large.reader_parts()[1]
    part[0] = 99

    assert is_mapped(part)
    assert bytes(large.reader_parts()[1]) == bytes(blobs.MAP_FROM)
    assert not is_mapped(small.reader_parts()[1])


def test_a_slot_copies_larger_ones_too(monkeypatch):
    monkeypatch.setattr(blobs, "_map_from", [blobs.MAP_FROM])
    blobs.copy_arguments()
    [argument] = received(1)
    [largest] = received(1, blobs.ARGUMENT_MAP_FROM)

    assert not is_mapped(argument.reader_parts()[1])
    assert is_mapped(largest.reader_parts()[1])


def test_bytes_are_never_mapped():
    before = files.count_viewed()
    [one] = received(1, flag=BYTES)

    part = one.reader_parts()[1]

    assert type(part) is bytes
    assert files.count_viewed() == before, "it would cost descriptors in vain"


def test_parts_are_mapped_within_limits(monkeypatch):
    monkeypatch.setattr(blobs, "MAX_MAPPED", files.count_viewed() + 3)
    payloads = received(6)

    parts = [blob.reader_parts()[1] for blob in payloads]

    assert [is_mapped(part) for part in parts] == [True] * 3 + [False] * 3
    assert [part[-1] for part in parts] == list(range(6))
    del parts[0], payloads[0]
    assert is_mapped(send(packed(7, blobs.MAP_FROM)).reader_parts()[1]), "one of them is gone"


def test_a_time_limit_that_strikes_here_is_not_taken_for_a_shortage(monkeypatch):
    def strike(*args, **kwargs):
        raise TaskTimeout("the task ran longer than timeout=1 s")

    [one] = received(1)
    monkeypatch.setattr(files.File, "map", strike)
    monkeypatch.setattr(files.File, "write", strike)

    with pytest.raises(TaskTimeout):
        one.reader_parts()
    with pytest.raises(TaskTimeout):
        packed(2)


@pytest.mark.parametrize("size", [blobs.MAP_FROM, blobs.ARGUMENT_MAP_FROM])
def test_what_cannot_be_mapped_is_copied(size, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EMFILE, "too many open files")

    one = send(packed(5, size))
    monkeypatch.setattr(files, "Mapping", refuse)

    assert bytes(one.reader_parts()[1]) == bytes([5]) * size


def test_large_payloads_take_a_file_at_once_unless_told_not_to():
    large = bytes(MEMFD_FROM)

    assert Blob.pack([large], []).fd is not None
    assert Blob.pack([large[: MEMFD_FROM // 2]], []).fd is None
    assert Blob.pack([large], [], memfd=False).fd is None


def test_descriptors_are_bounded_and_payloads_go_on_on_the_heap(monkeypatch):
    before = len(blobs._live)
    monkeypatch.setattr(blobs, "_room", [blobs.MAX_LIVE])
    blobs.keep_open(before + 3)

    made = [Blob.pack([bytes(MEMFD_FROM)], []) for _ in range(6)]
    received = [Blob.from_fd(os.dup(made[0].to_fd()), made[0].layout) for _ in range(3)]

    assert [blob.fd is not None for blob in made] == [True] * 3 + [False] * 3
    assert len(blobs._live) == before + 3
    assert [blob.fd for blob in received] == [None] * 3
    assert all(bytes(blob.parts[0]) == bytes(MEMFD_FROM) for blob in made + received)
    del made, received
    assert len(blobs._live) == before


def test_no_descriptor_left_means_the_heap(monkeypatch):
    def refuse(name, size):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(files, "anonymous_file", refuse)

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

    assert part[5] == 0, "what was looked at stays mapped"
    del part
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_close_is_idempotent_and_ends_reading():
    made = Blob.pack([bytes(MEMFD_FROM)], [])

    made.close()
    made.close()

    with pytest.raises(ValueError, match="closed"):
        _ = made.parts


def test_a_file_shorter_than_its_layout_is_refused_and_closed():
    fd = os.memfd_create("short")
    os.write(fd, b"x" * 74)

    with pytest.raises(OSError, match="shorter"):
        Blob.from_fd(fd, [(64, 11, READONLY)])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_that_shrinks_later_is_an_error_and_no_hang(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")  # a memfd is sealed against it
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
