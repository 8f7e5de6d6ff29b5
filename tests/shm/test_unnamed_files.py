"""Where payloads' files are: in memory, or on disk where there is no memory to be had."""

import errno
import os
import tempfile

import pytest

from taskmesh.shm import files
from taskmesh.shm.blob import MEMFD_FROM
from tests.wire.samples import packed


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
