"""taskmesh.toml as editors write it, and what else may stand in its place."""

from pathlib import Path

import pytest

from taskmesh.config import load
from taskmesh.errors import ConfigError


@pytest.mark.parametrize(("mark", "end"), [(b"\xef\xbb\xbf", b"\n"), (b"", b"\r\n")])
def test_a_byte_order_mark_and_lines_of_windows_are_no_matter(tmp_path, mark, end):
    (tmp_path / "taskmesh.toml").write_bytes(mark + end.join([b"[pool]", b"concurrency = 3", b""]))

    assert load(environ={}, directory=tmp_path).pool.concurrency == 3


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Path.mkdir, "Is a directory"),
        (lambda file: file.symlink_to("nowhere"), "No such file"),
        (lambda file: file.symlink_to(file.name), "symbolic links"),
    ],
    ids=["directory", "dangling link", "link to itself"],
)
def test_what_is_no_file_is_told(tmp_path, make, told):
    file = tmp_path / "taskmesh.toml"
    make(file)

    with pytest.raises(ConfigError, match=f"{file}: cannot be read as TOML: .*{told}"):
        load(environ={}, directory=tmp_path)


def test_a_directory_that_is_named_like_a_projects_file_is_none_of_ours(tmp_path):
    (tmp_path / "pyproject.toml").mkdir()

    assert load(environ={}, directory=tmp_path) == load({}, environ={})


def test_folders_that_nobody_may_look_into_are_passed_by(tmp_path, monkeypatch):
    def forbidden(path: str, **_: object) -> object:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.stat", forbidden)
    monkeypatch.setattr("os.lstat", forbidden)

    assert load(environ={}, directory=tmp_path) == load({}, environ={})
