"""Sources of modules: known as they were imported, and compared by slots."""

import importlib
import math
import sys
import types

import pytest

import taskmesh.retry
from taskmesh.serialize import sources
from taskmesh.serialize.code import dump_function
from taskmesh.serialize.sources import difference, look_at_imports, module_of, source_of


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes and imports a module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sources, "_known", {})
    names = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        names.append(name)
        return importlib.import_module(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_source_is_known_as_it_was_until_the_module_is_imported_again(written, tmp_path):
    module = written("one_source", "def f(): return 1\n")
    first = source_of("one_source")
    digest, path = first.split(" ", 1)
    assert (len(digest), path) == (16, str(tmp_path / "one_source.py"))

    (tmp_path / "one_source.py").write_text("def f(): return 22\n")
    assert source_of("one_source") == first
    importlib.reload(module)
    assert source_of("one_source") != first
    assert source_of("one_source").endswith(path)


def test_the_same_text_elsewhere_is_the_same_source(written):
    text = "def f(): return 1\n"
    module = written("here_source", text)
    written("there_source", text)

    assert difference(dump_function(module.f), source_of("there_source")) == ""


def test_a_difference_names_module_files_digests_and_cure(written, tmp_path):
    module = written("old_source", "def f(): return 1\n")

    words = difference(dump_function(module.f), "0123456789abcdef /theirs/with space/old_source.py")

    assert "another source of the module old_source than this program has" in words
    assert f"imported {tmp_path / 'old_source.py'} as of digest {source_of('old_source')[:16]}" in words
    assert "here it is /theirs/with space/old_source.py as of digest 0123456789abcdef" in words
    assert "Restart the workers" in words
    assert "taskmesh.register_by_value(old_source)" in words


def test_what_has_no_source_of_the_users_is_never_different(written):
    module = written("sourceless", "f = lambda: 1\n")
    theirs = "0123456789abcdef /theirs.py"

    for function in (math.sqrt, importlib.reload, taskmesh.retry.verdict, pytest.fixture, module.f):
        assert difference(dump_function(function), theirs) == ""
    assert difference(dump_function(module.f), "") == ""
    assert module_of(dump_function(module.f)) == ""
    for name in ("math", "importlib", "zipimport", "taskmesh.retry", "pytest", "not_there"):
        assert source_of(name) == ""


def test_a_worker_without_the_file_does_not_compare(written, tmp_path):
    module = written("gone_source", "def f(): return 1\n")
    (tmp_path / "gone_source.py").unlink()

    assert source_of("gone_source") == ""
    assert difference(dump_function(module.f), "0123456789abcdef /theirs.py") == ""


def test_imports_are_looked_at_together_and_lazy_ones_stay_lazy(written, tmp_path, monkeypatch):
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked for")

    written("other_source", "x = 1\n")
    monkeypatch.setitem(sys.modules, "lazy_source", Lazy("lazy_source"))
    monkeypatch.setitem(sys.modules, "odd_source", None)

    look_at_imports()
    before = source_of("other_source")
    (tmp_path / "other_source.py").write_text("x = 22\n")

    assert before
    assert source_of("other_source") == before
