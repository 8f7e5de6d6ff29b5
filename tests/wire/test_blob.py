import errno
import mmap
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskmesh.wire import blob as blobs
from taskmesh.wire import frames
from taskmesh.wire import messages as m
from taskmesh.wire.blob import BYTES, MEMFD_FROM, PRIVATE, READONLY, Blob, layout_of, live_descriptors

PICKLE = b"p" * 100


def test_layout_aligns_every_part_for_arrays():
    layout = layout_of([100, 0, 64, 1], [READONLY, PRIVATE, BYTES, PRIVATE])

    assert layout == [(64, 100, READONLY), (192, 0, PRIVATE), (192, 64, BYTES), (256, 1, PRIVATE)]


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


@pytest.fixture
def newcomer(monkeypatch):
    """A process that has read nothing yet."""
    monkeypatch.setattr(blobs, "_crowd", blobs._Crowd())


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
    assert len(blobs._crowd._mappings) == 0, "a file that was mapped cannot be used again"
    assert not is_mapped(small[0].reader_parts()[1])


def test_a_crowd_is_mapped_within_limits(newcomer, monkeypatch):
    monkeypatch.setattr(blobs, "MAX_MAPPED", 3)
    received = crowd(2 * blobs._MANY)

    parts = [blob.reader_parts()[1] for blob in received]

    assert [is_mapped(part) for part in parts] == [True] * 3 + [False] * (len(parts) - 3)


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
    os.write(fd, b"x" * 74)

    with pytest.raises(OSError, match="shorter"):
        Blob.from_fd(fd, [(64, 11, READONLY)])
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


# --- files that are used again ----------------------------------------------------------------------------


@pytest.fixture
def spares():
    """A process that keeps spare files, as slots do."""
    blobs.keep_spares(4 << 20)
    yield blobs._spares
    blobs.keep_spares(0)
    assert blobs._spares == []


def packed(fill, size=MEMFD_FROM):
    return Blob.pack([PICKLE, bytes([fill]) * size], [PRIVATE])


def send(made):
    """The Blob that arrives when `made` is sent to another process."""
    _, [one] = frames.encode_local(m.SlotProgress(1, 0, made))
    return Blob.from_fd(os.dup(one.to_fd()), one.layout)


def inode(blob):
    return os.fstat(blob.fd).st_ino


def test_a_file_is_used_again_when_its_only_receiver_is_through(spares):
    first = packed(1)
    file = inode(first)
    received = send(first)
    del first
    held = packed(2)
    part = received.reader_parts()[1]
    del received
    second = packed(3)

    assert inode(held) != file, "somebody was still reading"
    assert inode(second) == file
    assert bytes(part) == b"\1" * MEMFD_FROM, "what was read is a copy"
    assert bytes(second.parts[1]) == b"\3" * MEMFD_FROM


def test_a_file_that_was_never_sent_is_used_again_at_once(spares):
    first = packed(1)
    file = inode(first)
    del first

    assert inode(packed(2)) == file


@pytest.mark.parametrize("reason", ["sent twice", "mapped by its maker", "mapped by its receiver", "sent on"])
def test_a_file_that_somebody_may_still_look_at_is_not_used_again(spares, reason):
    size = blobs.MAP_FROM if reason == "mapped by its receiver" else MEMFD_FROM
    blobs.keep_spares(2 * blobs.MAP_FROM)
    first = packed(1, size)
    file = inode(first)
    received = send(first)
    looked_at = None
    if reason == "sent twice":
        looked_at = send(first)
    elif reason == "mapped by its maker":
        looked_at = first.parts
    elif reason == "mapped by its receiver":
        looked_at = received.reader_parts()
    else:
        looked_at = send(received)
    del first, received

    again = [packed(2, size) for _ in range(3)]

    assert file not in map(inode, again)
    content = looked_at[1] if isinstance(looked_at, list) else looked_at.reader_parts()[1]
    assert bytes(content) == b"\1" * size


def test_a_forked_child_neither_frees_nor_takes_files(spares):
    first = packed(1)
    spare = packed(2)
    files = {inode(first), inode(spare)}
    received = send(first)
    del spare
    child = os.fork()
    if not child:
        del received
        taken = {inode(packed(3)) for _ in range(3)}
        os._exit(1 if taken & files else 0)  # noqa: TID251 -- a forked child that must not run pytest's exit

    assert os.waitpid(child, 0)[1] == 0
    del first
    others = {inode(one) for one in [packed(4), packed(5)]}
    assert inode(received) not in others
    assert bytes(received.reader_parts()[1]) == b"\1" * MEMFD_FROM


def test_spare_files_are_bounded_in_number_and_bytes(spares):
    made = [packed(i, 1 << 20) for i in range(6)]
    del made
    assert sum(spare.size for spare in spares) <= 4 << 20
    assert len(spares) == 3

    made = [packed(i) for i in range(30)]
    del made
    assert len(spares) <= 16

    blobs.keep_spares(0)
    assert spares == []
    del spares[:]
    one = packed(1)
    del one
    assert spares == []


def test_threads_never_get_the_same_file(spares):
    def work(i):
        for j in range(40):
            one = packed((i + j) % 256)
            assert set(bytes(one.reader_parts()[1])) == {(i + j) % 256}
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
