"""Files of large payloads are used again as soon as nobody reads them, and never sooner."""

import errno
import gc
import mmap
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskmesh.errors import TaskTimeout
from taskmesh.shm import blob as blobs
from taskmesh.shm import files
from taskmesh.shm.blob import MEMFD_FROM
from tests.messages.samples import packed, send


@pytest.fixture
def spares():
    """A process that keeps spare files, as slots do."""
    files.keep_spares(4 << 20)
    yield files._spares
    files.keep_spares(0)
    assert files._spares == []


def refuse_data(fd, data, offset):
    """os.pwrite, but for what is more than the marks."""
    if len(data) > files.HEADER:
        raise OSError(errno.ENOSPC, "no space left on device")
    return _pwrite(fd, data, offset)


_pwrite = os.pwrite


def in_turn(count, size=MEMFD_FROM):
    """The last of so many payloads, each made when the one before is gone."""
    for fill in range(count - 1):
        packed(fill, size)
    return packed(count - 1, size)


def inode(blob):
    return os.fstat(blob.fd).st_ino


def inode_size(blob):
    return os.fstat(blob.fd).st_size


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
    files.keep_spares(2 * blobs.MAP_FROM)
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


@pytest.mark.usefixtures("processes")
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


def test_a_mapped_file_is_used_again_when_its_mapping_is_gone(spares):
    files.keep_spares(4 * blobs.MAP_FROM)
    first = packed(1, blobs.MAP_FROM)
    file = inode(first)
    received = send(first)
    part = received.reader_parts()[1]
    del first, received
    assert isinstance(part.obj, mmap.mmap)
    held = packed(2, blobs.MAP_FROM)
    view = part[5:]
    del part

    assert inode(held) != file, "somebody was still looking"
    assert inode(packed(3, blobs.MAP_FROM)) != file, "at a part of it"
    del view, held
    assert inode(packed(4, blobs.MAP_FROM)) == file


@pytest.mark.parametrize("size", [MEMFD_FROM, blobs.MAP_FROM])
@pytest.mark.usefixtures("processes")
def test_what_a_forked_child_may_look_at_is_not_used_again(spares, size):
    files.keep_spares(2 * blobs.MAP_FROM)
    first = packed(1, size)
    file = inode(first)
    received = send(first)
    looked_at = received.reader_parts() if size == blobs.MAP_FROM else None
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the parent has given it up
        content = bytes((looked_at or received.reader_parts())[1])
        os._exit(0 if content == b"\1" * size else 1)  # noqa: TID251 -- not pytest's exit
    os.close(reading)
    del first, received, looked_at

    again = [packed(2, size) for _ in range(3)]
    os.close(writing)

    assert os.waitpid(child, 0)[1] == 0
    assert file not in map(inode, again)


@pytest.mark.parametrize("kind", ["received", "made", "spare"])
def test_another_file_that_has_got_its_number_is_left_alone(spares, tmp_path, kind):
    made = packed(1)
    blob = send(made) if kind == "received" else made
    number = blob.fd
    assert number is not None
    mine = tmp_path / "mine"
    mine.write_bytes(b"\1 is mine")
    if kind == "spare":
        del made, blob
    with mine.open("r+b") as file:
        os.dup2(file.fileno(), number)  # as after os.closerange() and open()
        try:
            if kind == "spare":
                assert packed(2).fd != number
            else:
                del made, blob
            files.keep_spares(0)
            assert os.path.samestat(os.fstat(number), mine.stat())
        finally:
            os.close(number)
    assert mine.read_bytes() == b"\1 is mine"


@pytest.mark.parametrize("keeps", [True, False])
def test_a_number_that_stands_for_nothing_any_more_is_no_error(spares, keeps):
    files.keep_spares(4 << 20 if keeps else 0)
    made, other = packed(1), packed(2)
    numbers = [made.fd, other.fd]
    del other
    for number in numbers if keeps else numbers[:1]:
        os.close(number)
    del made
    files.keep_spares(0)


def test_finalizers_of_a_cycle_may_look_at_a_mapping_yet(spares):
    seen = []

    class Node:
        def __init__(self, view):
            self.me = self
            self.view = view

        def __del__(self):
            after = packed(2, blobs.MAP_FROM)  # what a sender does who thinks that the file is free
            seen.append((bytes(self.view[:4]), inode(after)))

    files.keep_spares(4 * blobs.MAP_FROM)
    first = packed(1, blobs.MAP_FROM)
    file = inode(first)
    received = send(first)
    node = Node(received.reader_parts()[1])
    del first, received, node

    gc.collect()

    [(content, taken)] = seen
    assert content == b"\1" * 4
    assert taken != file
    assert inode(packed(3, blobs.MAP_FROM)) in {file, taken}, "now it may be used again"


def test_a_small_payload_does_not_take_a_large_file(spares):
    files.keep_spares(2 * blobs.ARGUMENT_MAP_FROM)
    first = packed(1, blobs.ARGUMENT_MAP_FROM)
    file = inode(first)
    del first

    assert inode(packed(2)) != file
    assert inode(packed(3, blobs.ARGUMENT_MAP_FROM // 2)) == file


@pytest.mark.usefixtures("processes")
def test_files_that_come_while_the_process_forks_are_barred_too(spares):
    files.keep_spares(4 * blobs.MAP_FROM)
    forks = files._forks[0]
    child = os.fork()
    if not child:
        os._exit(0)  # noqa: TID251 -- not pytest's exit
    os.waitpid(child, 0)

    assert files._forks[0] == forks + 2, "what came between the two counts is not used again either"


def test_a_spare_that_another_thread_has_closed_is_passed_over(spares, monkeypatch):
    def closed(fd, size, offset):
        raise OSError(errno.EBADF, "bad file descriptor")

    first = packed(1)
    file = inode(first)
    del first
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", closed)
        made = packed(2)

    assert made.fd is not None
    assert inode(made) != file


def test_as_many_files_are_kept_as_are_in_use(spares):
    files.keep_spares(MEMFD_FROM)
    one, two, three, four = (packed(fill) for fill in range(4))

    del one, two
    assert len(spares) == 2, "as many as are left"
    del three
    assert len(spares) == 1
    del four
    assert spares == [], "the file has a header, too"


def test_a_file_is_not_kept_where_memory_is_short(spares, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse_data)
        made = packed(1)

    assert made.fd is None, "the heap will do"
    assert spares == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_spare_files_are_bounded_in_number_and_bytes(spares, monkeypatch):
    monkeypatch.setattr(files, "_MAX_KEPT", 16)
    made = [packed(i, 1 << 20) for i in range(6)]
    del made
    assert sum(spare.size for spare in spares) <= 4 << 20
    assert len(spares) == 3

    made = [packed(i) for i in range(30)]
    del made
    assert len(spares) <= 16

    files.keep_spares(0)
    assert spares == []
    del spares[:]
    one = packed(1)
    del one
    assert spares == []


def test_a_file_that_is_used_again_is_filled_through_memory(spares, monkeypatch):
    in_turn(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse_data)
        second = packed(3)
    assert second.fd is not None, "it was filled without a call"
    assert bytes(second.parts[1]) == b"\3" * MEMFD_FROM

    del second
    grown = packed(4, 2 * MEMFD_FROM)
    assert bytes(grown.parts[1]) == b"\4" * (2 * MEMFD_FROM), "what goes beyond the memory is written"
    del grown
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse_data)
        again = packed(5, 2 * MEMFD_FROM)
    assert bytes(again.parts[1]) == b"\5" * (2 * MEMFD_FROM)


def test_what_is_filled_through_memory_is_copied_in_steps(spares, monkeypatch):
    monkeypatch.setattr(files, "_STEP", 1000)
    made = in_turn(4, MEMFD_FROM + 7)

    assert made._file.memory is not None
    assert bytes(made.parts[0]) == b"p" * 100
    assert bytes(made.parts[1]) == b"\3" * (MEMFD_FROM + 7)


def test_nobody_can_take_pages_away_from_a_file():
    made = packed(1)

    with pytest.raises(PermissionError):
        os.ftruncate(made.fd, 10)


def test_files_whose_pages_can_be_taken_away_are_not_mapped(spares, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    made = in_turn(4)

    assert len(spares) == 0
    assert made._file.memory is None
    assert bytes(made.parts[1]) == b"\3" * MEMFD_FROM


def test_without_descriptors_for_a_mapping_calls_do(spares, monkeypatch):
    def none_left(*args):
        raise OSError(errno.EMFILE, "too many open files")

    in_turn(1)
    with monkeypatch.context() as patch:
        patch.setattr(files, "Mapping", none_left)
        made = packed(3)

    assert made._file.memory is None
    assert bytes(made.parts[1]) == b"\3" * MEMFD_FROM


def test_a_time_limit_that_strikes_as_a_file_is_mapped_is_passed_on(spares, monkeypatch):
    def late(*args):
        raise TaskTimeout("5 s are over")

    in_turn(1)
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(files, "Mapping", late)
        with pytest.raises(TaskTimeout):
            packed(3)

    assert len(os.listdir("/proc/self/fd")) == before - 1, "the file is closed"
    assert spares == []


def refuse_read(*args):
    """Stands for os.pread and os.preadv."""
    raise OSError(errno.EIO, "input/output error")


def test_a_file_is_read_through_memory_and_what_was_read_is_a_copy(spares, monkeypatch):
    monkeypatch.setattr(os, "preadv", refuse_read)
    seen, inodes = [], set()
    for fill in range(4):
        made = packed(fill)
        inodes.add(inode(made))
        received = send(made)
        head, part = received.reader_parts()
        part[0] = 99
        seen.append((bytes(head), part))
        del made, received, part

    assert len(inodes) == 1
    assert len(files._mapped) == 1, "it is mapped once"
    for fill, (head, part) in enumerate(seen):
        assert head == b"p" * 100
        assert bytes(part) == b"\x63" + bytes([fill]) * (MEMFD_FROM - 1)


def test_a_file_that_has_grown_is_mapped_anew(spares, monkeypatch):
    for fill, size in enumerate([MEMFD_FROM, 2 * MEMFD_FROM, MEMFD_FROM]):
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", refuse_read)
            part = send(packed(fill, size)).reader_parts()[1]
        assert bytes(part) == bytes([fill]) * size

    assert len(files._mapped) == 1


@pytest.mark.parametrize("limit", ["number", "bytes", "no spares", "size"])
def test_beyond_what_may_stay_mapped_calls_do(spares, monkeypatch, limit):
    made = [packed(fill) for fill in range(4)]
    received = [send(one) for one in made]
    if limit == "number":
        monkeypatch.setattr(files, "_MAX_KEPT", 2)
    elif limit == "size":
        monkeypatch.setattr(files, "_LARGEST_MAPPED", MEMFD_FROM)
    else:
        monkeypatch.setattr(files, "_filled", {})
        files.keep_spares(2 * inode_size(made[0]) if limit == "bytes" else 0)

    parts = [one.reader_parts()[1] for one in received]

    assert [part[-1] for part in parts] == [0, 1, 2, 3]
    assert len(files._mapped) == (2 if limit in {"number", "bytes"} else 0)


def test_readers_of_one_file_share_its_memory(spares):
    made = packed(7)
    received = [send(made) for _ in range(3)]

    parts = [one.reader_parts()[1] for one in received]
    parts[0][:] = bytes(MEMFD_FROM)

    assert len(files._mapped) == 1
    assert bytes(parts[1]) == bytes(parts[2]) == b"\7" * MEMFD_FROM


def test_what_has_not_been_read_for_a_while_is_unmapped(spares):
    made = packed(1)
    before = len(os.listdir("/proc/self/fd"))
    send(made).reader_parts()
    assert len(os.listdir("/proc/self/fd")) == before + 1

    assert files.close_idle(10.0)
    assert files.close_idle(10.0 + files.KEPT_S - 0.1)
    assert not files.close_idle(10.0 + files.KEPT_S)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("through", [True, False])
def test_pages_of_a_closed_file_are_given_back_wherever_it_is_mapped(spares, through):
    made = packed(1)
    received = send(made)
    received.reader_parts()
    looking = os.dup(made.fd)
    try:
        if through:
            del received
        del made
        files.keep_spares(1)

        assert spares == []
        assert (os.fstat(looking).st_blocks == 0) == through
    finally:
        os.close(looking)


@pytest.mark.usefixtures("processes")
def test_a_forked_child_has_nothing_mapped(spares):
    made = packed(1)
    send(made).reader_parts()
    child = os.fork()
    if not child:
        os._exit(len(files._mapped))  # noqa: TID251 -- not pytest's exit

    assert os.waitpid(child, 0)[1] == 0
    assert len(files._mapped) == 1
    assert bytes(send(made).reader_parts()[1]) == b"\1" * MEMFD_FROM, "its pages are still there"


def test_what_has_not_been_used_for_a_while_is_closed(spares):
    made = [packed(1), packed(2)]
    assert not files.close_idle(10.0)
    del made

    assert files.close_idle(20.0)
    assert files.close_idle(20.0 + files.KEPT_S - 0.1)
    held = packed(3)
    del held
    assert files.close_idle(20.0 + files.KEPT_S)
    [left] = spares
    assert left.seen == 20.0 + files.KEPT_S, "it has been used"
    assert not files.close_idle(20.0 + 2 * files.KEPT_S)
    assert spares == []


def test_threads_never_get_the_same_file(spares):
    def work(i):
        for j in range(40):
            one = packed((i + j) % 256)
            assert set(bytes(one.reader_parts()[1])) == {(i + j) % 256}
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


# --- where they are: in memory, or on disk where there is no memory to be had -------------------------------


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS])
def test_where_a_sandbox_refuses_files_in_memory_unlinked_ones_do(monkeypatch, number):
    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    made = packed(3)

    assert os.fstat(made.fd).st_nlink == 0
    assert bytes(made.parts[1]) == b"\3" * MEMFD_FROM


def test_a_shortage_of_descriptors_is_not_taken_for_a_refusal(monkeypatch):
    def none_left(*args):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left, raising=False)

    with pytest.raises(OSError, match="too many open files"):
        files.anonymous_file("taskmesh", 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_where_shared_memory_has_no_room_a_temporary_file_does(tmp_path, monkeypatch, number):
    def full(fd, offset, size):
        if os.fstat(fd).st_dev == os.stat(files._MEMORY).st_dev:
            raise OSError(number, os.strerror(number))
        allocate(fd, offset, size)

    allocate = os.posix_fallocate
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    fd = files.unlinked_file(5000)

    try:
        assert os.fstat(fd).st_dev == tmp_path.stat().st_dev
        assert os.fstat(fd).st_size == 5000
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(fd)


@pytest.mark.parametrize("last", ["relay", "reader"])
def test_a_file_that_was_passed_on_is_used_again_when_both_are_through(spares, last):
    sent = blobs.Blob.pack([b"pickle", b"x" * MEMFD_FROM], ())
    first, size = inode(sent), os.fstat(sent.fd).st_size
    relay = blobs.Blob.from_fd(os.dup(sent.fd), sent.layout, relayed=True)
    reader = blobs.Blob.from_fd(os.dup(relay.fd), sent.layout)
    sent.sends = relay.sends = 1
    sent.close()

    (reader if last == "relay" else relay).close()
    assert files.File.to_fill(size).identity[1] != first
    (relay if last == "relay" else reader).close()
    assert files.File.to_fill(size).identity[1] == first
