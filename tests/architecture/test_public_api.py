"""The public names are a promise: public_api.txt lists them; to change that list is a decision."""

from pathlib import Path

import taskmesh

SNAPSHOT = Path(__file__).with_name("public_api.txt")


def test_public_names_are_those_of_the_snapshot():
    promised = SNAPSHOT.read_text(encoding="utf-8").split()

    assert sorted(taskmesh.__all__) == promised, (
        f"public API changed: note it in CHANGELOG.md and in {SNAPSHOT.name}"
    )


def test_public_names_resolve():
    missing = [name for name in taskmesh.__all__ if getattr(taskmesh, name, None) is None]

    assert missing == []


def test_public_names_are_all_that_dir_shows():
    assert {name for name in dir(taskmesh) if not name.startswith("_")} >= set(taskmesh.__all__) - {
        "__version__"
    }
