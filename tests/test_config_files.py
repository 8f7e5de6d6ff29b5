"""taskmesh.toml as editors write it."""

import pytest

from taskmesh.config import load


@pytest.mark.parametrize(("mark", "end"), [(b"\xef\xbb\xbf", b"\n"), (b"", b"\r\n")])
def test_a_byte_order_mark_and_lines_of_windows_are_no_matter(tmp_path, mark, end):
    (tmp_path / "taskmesh.toml").write_bytes(mark + end.join([b"[pool]", b"concurrency = 3", b""]))

    assert load(environ={}, directory=tmp_path).pool.concurrency == 3
