"""taskmesh.toml as editors write it, and what else may stand in its place."""

import os
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


def write_settings(folder: Path, concurrency: int) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "taskmesh.toml").write_text(f"[pool]\nconcurrency = {concurrency}\n")
    return folder


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a path another user's in the eyes of whoever reads it."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 0)


@pytest.mark.parametrize("given", ["taskmesh.toml", "."])
def test_what_another_user_could_have_written_is_passed_over_with_a_warning(
    tmp_path, monkeypatch, caplog, given
):
    folder = write_settings(tmp_path / "project", 3)
    give_away(folder / given, monkeypatch)

    assert load(environ={}, directory=folder) == load({}, environ={})
    assert f"{folder}/taskmesh.toml is passed over" in caplog.text
    assert load(folder / "taskmesh.toml", environ={}).pool.concurrency == 3


def test_a_link_of_another_user_is_passed_over_wherever_it_leads(tmp_path, monkeypatch, caplog):
    own = write_settings(tmp_path / "own", 3)
    (tmp_path / "project").mkdir()
    link = tmp_path / "project" / "taskmesh.toml"
    link.symlink_to(own / "taskmesh.toml")
    give_away(link, monkeypatch)

    assert load(environ={}, directory=link.parent) == load({}, environ={})
    assert "is passed over" in caplog.text


@pytest.mark.parametrize("end", ["home", "mount"])
def test_the_search_ends_at_the_home_directory_or_a_mount(tmp_path, monkeypatch, end):
    write_settings(tmp_path, 3)
    last = tmp_path / "last"
    (last / "project").mkdir(parents=True)
    if end == "home":
        monkeypatch.setenv("HOME", str(last))
    else:
        monkeypatch.setattr("os.path.ismount", lambda folder: folder == last)

    assert load(environ={}, directory=last / "project") == load({}, environ={})
    write_settings(last, 4)
    assert load(environ={}, directory=last / "project").pool.concurrency == 4
