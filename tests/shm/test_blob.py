import errno
import mmap
import os
import pickle
import weakref

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


@pytest.fixture
def newcomer(monkeypatch):
    """A process that has read nothing yet."""
    monkeypatch.setattr(blobs, "_crowd", blobs.MappingPolicy())


def crowd(count, flag=PRIVATE):
    """As many received results, each with one part large enough to be mapped where many wait."""
    size = blobs.CROWD_MAP_FROM
    return [send(Blob.pack([PICKLE, bytes([number]) * size], [flag])) for number in range(count)]


def is_mapped(part):
    return isinstance(memoryview(part).obj, mmap.mmap)


def test_a_gatherer_of_many_results_gets_them_mapped(newcomer):
    received = crowd(2 * blobs._MANY)
    parts = []
    while received:
        parts.append(received.pop(0).reader_parts()[1])
    memoryview(parts[0])[0] = 99

    mapped = [is_mapped(part) for part in parts]
    assert mapped == [True] * (blobs._MANY + 1) + [False] * (blobs._MANY - 1), "the last ones are few again"
    assert [bytes(part) == bytes([number]) * len(part) for number, part in enumerate(parts)] == [
        number > 0 for number in range(2 * blobs._MANY)
    ]


def test_who_drops_what_he_has_read_gets_copies(newcomer):
    received = crowd(2 * blobs._MANY)
    mapped, part = [], None
    while received:
        part = received.pop(0).reader_parts()[1]
        mapped.append(is_mapped(part))

    assert mapped[:2] == [True, True], "nothing is known yet"
    assert not any(mapped[2:])


def test_bytes_and_small_parts_are_never_mapped_for_the_sake_of_a_crowd(newcomer):
    received = crowd(blobs._MANY, BYTES)
    small = [send(packed(1, blobs.CROWD_MAP_FROM // 2)) for _ in range(blobs._MANY)]

    assert type(received[0].reader_parts()[1]) is bytes
    assert len(blobs._crowd._mappings) == 0, "it would cost descriptors in vain"
    assert not is_mapped(small[0].reader_parts()[1])


@pytest.mark.parametrize("size", [blobs.CROWD_MAP_FROM, blobs.MAP_FROM])
def test_parts_are_mapped_within_limits(size, newcomer, monkeypatch):
    monkeypatch.setattr(blobs, "MAX_MAPPED", 3)
    received = [send(packed(number, size)) for number in range(2 * blobs._MANY)]

    parts = [blob.reader_parts()[1] for blob in received]

    assert [is_mapped(part) for part in parts] == [True] * 3 + [False] * (len(parts) - 3)
    assert [part[-1] for part in parts] == list(range(len(parts)))


def test_mappings_are_counted_anew_when_there_seem_to_be_too_many(newcomer, monkeypatch):
    class Haunted(weakref.WeakSet):
        def __len__(self):
            return super().__len__() + 1  # one whose callback a time limit has cut short

    monkeypatch.setattr(blobs, "MAX_MAPPED", 1)
    blobs._crowd._mappings = Haunted()

    assert is_mapped(send(packed(2, blobs.MAP_FROM)).reader_parts()[1])


def test_a_time_limit_that_strikes_here_is_not_taken_for_a_shortage(newcomer, monkeypatch):
    def strike(*args, **kwargs):
        raise TaskTimeout("the task ran longer than timeout=1 s")

    received = send(packed(1, blobs.MAP_FROM))
    monkeypatch.setattr(files.File, "map", strike)
    monkeypatch.setattr(files.File, "write", strike)

    with pytest.raises(TaskTimeout):
        received.reader_parts()
    with pytest.raises(TaskTimeout):
        packed(2)


@pytest.mark.parametrize("size", [blobs.CROWD_MAP_FROM, blobs.MAP_FROM])
def test_what_cannot_be_mapped_is_copied(newcomer, size, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EMFILE, "too many open files")

    received = [send(packed(number, size)) for number in range(blobs._MANY)]
    monkeypatch.setattr(mmap, "mmap", refuse)

    assert bytes(received[5].reader_parts()[1]) == bytes([5]) * size


def test_large_payloads_take_a_file_at_once_unless_told_not_to():
    large = bytes(MEMFD_FROM)

    assert Blob.pack([large], []).fd is not None
    assert Blob.pack([large[: MEMFD_FROM // 2]], []).fd is None
    assert Blob.pack([large], [], memfd=False).fd is None


def test_descriptors_are_bounded_and_payloads_go_on_on_the_heap(monkeypatch):
    before = len(blobs._live)
    monkeypatch.setattr(blobs, "MAX_LIVE", before + 3)

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
