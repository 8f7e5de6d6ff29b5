"""`taskmesh config show`: each setting says where it comes from, and no password is shown."""

import json

import pytest

from taskmesh.cli.configuration import masked, settings_of
from taskmesh.config import Config, load
from tests.harness.program import command, outcome_of

EVERY = [row["setting"] for row in settings_of(Config())]


def value_for(setting: str) -> object:
    """Return a value that the setting takes, as text: its default, or another where that is empty."""
    section, _, key = setting.partition(".")
    found = getattr(getattr(Config(), section), key)
    words = {
        "hub.journal": "redis://ann:secret@host/0",
        "mesh.address": "tcp://127.0.0.1:5550",
        "mesh.bind": "tcp://127.0.0.1:5550",
        "program.http": "127.0.0.1:5580",
        "pool.slot_user": "nobody",
        "hub.lanes": "5600-5700",
    }
    if setting in words:
        return words[setting]
    if isinstance(found, bool):
        return str(found).lower()
    return (
        found if not isinstance(found, tuple | list | frozenset | set) else ",".join(map(str, found)) or "a"
    )


@pytest.mark.parametrize("setting", EVERY)
def test_each_setting_says_where_it_comes_from(setting):
    section, _, key = setting.partition(".")
    value = value_for(setting)
    variable = f"TASKMESH_{section}__{key}".upper()

    sources = {
        "config": load({section: {key: value}}, environ={}),
        variable: load({}, environ={variable: str(value)}),
        f"argument {section}__{key}": load({}, {f"{section}__{key}": value}, environ={}),
    }

    for origin, config in sources.items():
        rows = {row["setting"]: row["origin"] for row in settings_of(config)}
        assert rows.pop(setting) == origin
        assert set(rows.values()) == {"default"}


def test_later_sources_go_before_earlier_ones_and_a_finished_config_keeps_its_origins():
    first = load({"pool": {"grace": 1, "concurrency": 2}}, environ={"TASKMESH_POOL__GRACE": "3"})
    config = load(first, {"pool__concurrency": 4})

    assert config.origins == {
        "pool.grace": "TASKMESH_POOL__GRACE",
        "pool.concurrency": "argument pool__concurrency",
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("redis://ann:secret@host:6379/0", "redis://ann:***@host:6379/0"),
        ("rediss://:secret@host/0", "rediss://:***@host/0"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("tcp://[::1]:5550", "tcp://[::1]:5550"),
        (5, 5),
    ],
)
def test_passwords_in_urls_are_not_shown(value, shown):
    assert masked(value) == shown


@pytest.mark.smoke
@pytest.mark.usefixtures("processes")
def test_the_command_shows_files_variables_and_options(tmp_path):
    (tmp_path / "taskmesh.toml").write_text(
        '[hub]\njournal = "redis://ann:secret@host/0"\n[pool]\ngrace = 5\n'
    )
    environment = {"TASKMESH_CONCURRENCY": "3"}
    line = command("config", "show", "--address", "tcp://127.0.0.1:1")

    people = outcome_of(line, env=environment, folder=tmp_path)
    programs = outcome_of([*line, "--json"], env=environment, folder=tmp_path)

    assert people.returncode == 0, people.stderr
    assert "secret" not in people.stdout + programs.stdout
    found = {row["setting"]: row["origin"] for row in json.loads(programs.stdout)}
    assert found == {
        "mesh.address": "--address",
        "hub.journal": str(tmp_path / "taskmesh.toml"),
        "pool.grace": str(tmp_path / "taskmesh.toml"),
        "pool.concurrency": "TASKMESH_CONCURRENCY",
    }
