import os
import signal
from contextlib import closing

import pytest

from taskmesh.shm import files, neighbour
from taskmesh.shm.blob import MEMFD_FROM, Blob
from taskmesh.shm.neighbour import NeighbourProbe, blob_at

SIZE = MEMFD_FROM
LAST_READER, FIRST_HOP, SECOND_HOP = 0, 1, 2


@pytest.fixture(autouse=True)
def no_unseen():
    """Files that nobody has opened in a test are closed at its end."""
    yield
    files.close_idle(0.0)
    files.close_idle(files.KEPT_S)


@pytest.fixture
def met():
    """Two probes of this process that have found each other: who says Hello, and who says Welcome."""
    with closing(NeighbourProbe()) as dialled, closing(NeighbourProbe()) as listens:
        towards = listens.meet(dialled.offer)
        back = dialled.meet_back(listens.offer)
        yield towards, back


@pytest.fixture
def spares():
    files.keep_spares(64 << 20)
    yield files._spares
    files.keep_spares(0)


def packed(number=1):
    return Blob.pack([b"p" * 100, bytes([number]) * SIZE], ())


def passed_on(told, blob):
    """The same payload, as the process has it that is told of it."""
    return blob_at(told.tell(blob), blob.layout)


def marks(fd):
    return os.pread(fd, 3, 0)


def test_a_neighbour_opens_what_it_is_told_of(met):
    sent = packed()

    got = passed_on(met[0], sent)

    assert got.fd != sent.fd
    assert os.fstat(got.fd).st_ino == os.fstat(sent.fd).st_ino
    assert [bytes(part) for part in got.parts] == [b"p" * 100, b"\1" * SIZE]


def test_both_have_to_find_each_other_before_one_is_told():
    with closing(NeighbourProbe()) as dialled, closing(NeighbourProbe()) as listens:
        towards = listens.meet(dialled.offer)
        assert towards.tell(packed()) is None

        assert dialled.meet_back(listens.offer).tell(packed()) is not None
        assert towards.tell(packed()) is not None


def test_who_has_found_another_hub_is_told_nothing_by_this_one():
    with (
        closing(NeighbourProbe()) as dialled,
        closing(NeighbourProbe()) as former,
        closing(NeighbourProbe()) as listens,
    ):
        dialled.meet_back(former.offer)

        assert listens.meet(dialled.offer).tell(packed()) is None


def other_token(offer):
    return offer[:-1] + bytes([offer[-1] ^ 1])


def other_inode(offer):
    pid, fd, inode, token = neighbour._OFFER.unpack(offer)
    return neighbour._OFFER.pack(pid, fd, inode + 1, token)


def no_offer(offer):
    return b""


def half(offer):
    return offer[: len(offer) // 2]


def no_memory_file(offer):
    return neighbour._OFFER.pack(os.getpid(), 0, os.fstat(0).st_ino, offer[-16:])


@pytest.mark.parametrize("spoilt", [other_token, other_inode, no_memory_file, half, no_offer])
def test_who_shows_no_token_is_no_neighbour(spoilt):
    with closing(NeighbourProbe()) as dialled, closing(NeighbourProbe()) as listens:
        assert listens.meet(spoilt(dialled.offer)) is None


def test_a_closed_probe_is_found_by_nobody():
    with closing(NeighbourProbe()) as listens:
        dialled = NeighbourProbe()
        offer = dialled.offer
        dialled.close()
        dialled.close()

        assert listens.meet(offer) is None
        assert dialled.offer == b""


def test_where_no_file_can_be_made_nothing_is_offered(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")

    assert NeighbourProbe().offer == b""


def test_a_process_of_another_user_is_no_neighbour(monkeypatch):
    with closing(NeighbourProbe()) as dialled, closing(NeighbourProbe()) as listens:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

        assert listens.meet(dialled.offer) is None


def test_a_payload_is_told_of_once_and_sent_as_bytes_after_that(met):
    sent = packed()

    assert met[0].tell(sent) is not None
    assert met[0].tell(sent) is None


def test_a_payload_on_the_heap_is_sent_as_bytes(met):
    assert met[0].tell(Blob.pack([b"p", bytes(SIZE)], (), memfd=False)) is None


def test_a_descriptor_that_stands_for_another_file_by_now_is_refused(met):
    sent = packed()
    pid, fd, inode, hop = met[0].tell(sent)

    with pytest.raises(OSError, match="another file"):
        blob_at((pid, fd, inode + 1, hop), sent.layout)
    with pytest.raises(OSError, match="No such file"):
        blob_at((pid, 1 << 20, inode, hop), sent.layout)
    with pytest.raises(OSError, match="no memory file"):
        blob_at((pid, 0, inode, hop), sent.layout)


@pytest.mark.parametrize("hop", [0, -1, files.HEADER, 1 << 40])
def test_a_hop_that_makes_no_sense_is_refused(hop, met):
    pid, fd, inode, _ = met[0].tell(packed_again := packed())

    with pytest.raises(OSError, match="makes no sense"):
        blob_at((pid, fd, inode, hop), packed_again.layout)


def test_a_file_that_was_passed_on_is_used_again_when_everybody_is_through(met, spares):
    sent = packed()
    inode = os.fstat(sent.fd).st_ino
    hub = passed_on(met[0], sent)
    pool = passed_on(met[0], hub)
    del sent
    assert len(spares) == 1
    assert files.File.to_fill(SIZE).identity[1] != inode, "nobody is through"

    del pool
    assert files.File.to_fill(SIZE).identity[1] != inode, "the hub may send it again"
    del hub
    assert files.File.to_fill(SIZE).identity[1] == inode


def test_the_order_in_which_they_are_through_does_not_matter(met, spares):
    sent = packed()
    inode = os.fstat(sent.fd).st_ino
    hub = passed_on(met[0], sent)
    pool = passed_on(met[0], hub)
    del sent, hub
    assert files.File.to_fill(SIZE).identity[1] != inode

    del pool
    assert files.File.to_fill(SIZE).identity[1] == inode


def test_a_file_that_was_sent_to_several_is_never_used_again(met, spares):
    sent = packed()
    inode = os.fstat(sent.fd).st_ino
    pool = passed_on(met[0], sent)
    pool.sends = 2  # to a slot, and to another one after a recall
    reader = os.dup(pool.fd)
    del sent, pool

    os.pwrite(reader, b"\1", LAST_READER)  # the first slot is through
    assert marks(reader)[FIRST_HOP] == 1
    assert files.File.to_fill(SIZE).identity[1] != inode
    os.close(reader)


def test_a_file_that_is_passed_on_is_there_until_it_was_opened(met):
    sent = packed()
    hub = passed_on(met[0], sent)
    fd, layout = hub.fd, hub.layout
    reference = met[0].tell(hub)
    del hub

    got = blob_at(reference, layout)
    assert bytes(got.parts[1]) == b"\1" * SIZE

    files.close_idle(0.0)
    files.close_idle(files.KEPT_S)
    assert files._unseen == []
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_another_process_opens_it_too(met, processes):
    sent = packed(7)
    reference, layout = met[0].tell(sent), sent.layout
    child = os.fork()
    if not child:  # it knows the numbers only
        sent.close()
        code = 1
        try:
            code = 0 if bytes(blob_at(reference, layout).parts[1]) == b"\7" * SIZE else 2
        finally:
            os._exit(code)  # noqa: TID251  the forked child
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert marks(sent.fd)[FIRST_HOP] == 2, "it was through with it"
    assert marks(sent.fd)[SECOND_HOP] == 0


def test_a_process_that_has_ended_is_not_found(processes):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        probe = NeighbourProbe()
        os.write(writing, probe.offer)
        signal.pause()
        os._exit(0)  # noqa: TID251  the forked child
    offer = os.read(reading, 100)
    with closing(NeighbourProbe()) as listens:
        assert listens.meet(offer) is not None
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert listens.meet(offer) is None
    os.close(reading)
    os.close(writing)
