"""Settings: what goes before what, and errors that name the cure."""

import dataclasses
import re

import pytest

from taskmesh import Mesh, MeshExecutor
from taskmesh.config import MOST_SLOTS, Config, HubConfig, PoolConfig, load
from taskmesh.errors import ConfigError
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.pool.machine.settings import PoolSettings


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    return tmp_path


def test_defaults_stand_where_nothing_is_said(folder):
    config = load(environ={}, directory=folder)

    assert config == Config()
    assert config.client.max_pending == 2_000_000
    assert (config.hub.lease, config.hub.beat, config.hub.crash_limit) == (10.0, 1.0, 3)
    assert (config.pool.grace, config.pool.max_payload) == (30.0, 256 << 20)
    assert config.pool.slots >= 1


def test_file_goes_before_defaults_environment_before_file_arguments_before_all(folder):
    (folder / "taskmesh.toml").write_text("[hub]\nlease = 2\nbeat = 0.5\ncrash_limit = 5\n")

    config = load(
        None,
        {"lease": 4},
        environ={"TASKMESH_HUB__LEASE": "3", "TASKMESH_HUB__BEAT": "0.25"},
        directory=folder / "inner",
    )

    assert (config.hub.lease, config.hub.beat, config.hub.crash_limit) == (4.0, 0.25, 5)


def test_innermost_file_counts_and_taskmesh_toml_goes_before_pyproject(folder):
    (folder / "taskmesh.toml").write_text("[hub]\nlease = 1\n")
    (folder / "inner" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert load(environ={}, directory=folder / "inner").hub.lease == 1

    (folder / "inner" / "pyproject.toml").write_text("[tool.taskmesh.hub]\nlease = 2\n")
    assert load(environ={}, directory=folder / "inner").hub.lease == 2

    (folder / "inner" / "taskmesh.toml").write_text("[hub]\nlease = 3\n")
    assert load(environ={}, directory=folder / "inner").hub.lease == 3


def test_given_file_is_the_only_one_read(folder):
    (folder / "taskmesh.toml").write_text("[hub]\nlease = 1\n")
    other = folder / "other.toml"
    other.write_text("[pool]\nqueues = ['a', 'b']\n")

    config = load(other, environ={}, directory=folder)

    assert (config.hub.lease, config.pool.queues) == (10.0, ("a", "b"))


def test_finished_config_is_changed_by_arguments_alone(folder):
    config = load(
        Config(pool=PoolConfig(concurrency=3)),
        {"grace": 1},
        environ={"TASKMESH_GRACE": "x"},
        directory=folder,
    )

    assert (config.pool.concurrency, config.pool.grace) == (3, 1.0)


@pytest.mark.parametrize("name", ["SLOT", "JSON", "LOG_LEVEL", "MAX_TASKS_PER_CHILD", "GPUS"])
def test_variables_that_are_read_elsewhere_are_no_settings(name):
    assert load({}, environ={f"TASKMESH_{name}": "3"}) == Config()


def test_address_in_the_environment_is_the_meshs():
    config = load({}, environ={"TASKMESH_ADDRESS": "tcp://127.0.0.1:5550"})

    assert config.mesh.address == "tcp://127.0.0.1:5550"


def test_several_addresses_are_none():
    with pytest.raises(ConfigError, match=r"mesh\.address has to be one endpoint .* a mesh has one hub"):
        load({}, {"address": ["tcp://127.0.0.1:5550", "tcp://127.0.0.1:6550"]}, environ={})


def test_sizes_and_lists_are_read_as_people_write_them():
    config = load({"pool": {"max_payload": "64MiB"}}, {"queues": "a, b,"}, environ={})

    assert (config.pool.max_payload, config.pool.queues) == (64 << 20, ("a", "b"))


@pytest.mark.parametrize(
    ("source", "overrides", "environ", "words"),
    [
        ({"hub": {"leas": 1}}, {}, {}, ["config", "'leas'", "[hub]", "did you mean 'lease'?"]),
        ({"hubs": {}}, {}, {}, ["unknown section [hubs]", "did you mean 'hub'?"]),
        ({"zzz": {}}, {}, {}, ["known are client, hub, mesh, pool"]),
        ({"hub": 3}, {}, {}, ["hub has to be a section: [hub]"]),
        ({"hub": {"lease": "soon"}}, {}, {}, ["hub.lease has to be seconds, more than 0, not 'soon'"]),
        ({"hub": {"lease": 0}}, {}, {}, ["hub.lease has to be seconds, more than 0, not 0"]),
        ({"hub": {"lease": True}}, {}, {}, ["not True"]),
        ({"hub": {"lease": float("inf")}}, {}, {}, ["not inf"]),
        ({"hub": {"crash_limit": 1.5}}, {}, {}, ["a whole number, at least 1, not 1.5"]),
        ({"pool": {"queues": [1]}}, {}, {}, ["a list of queue names"]),
        ({"pool": {"concurrency": "four"}}, {}, {}, ["a whole number of slots"]),
        ({}, {"hub": "proces"}, {}, ["argument hub", "'thread' or 'process'"]),
        ({}, {"max_bytes": 1}, {}, ["client__max_bytes or hub__max_bytes"]),
        (
            {},
            {},
            {"TASKMESH_MAX_BYTES": "1GiB"},
            ["write TASKMESH_CLIENT__MAX_BYTES or TASKMESH_HUB__MAX_BYTES"],
        ),
        ({}, {"lese": 1}, {}, ["argument lese: unknown key; did you mean 'lease'?"]),
        ({}, {}, {"TASKMESH_HUB__LEES": "1"}, ["TASKMESH_HUB__LEES", "did you mean 'lease'?"]),
        ({}, {}, {"TASKMESH_HUBB__LEASE": "1"}, ["TASKMESH_HUBB__LEASE", "did you mean 'hub'?"]),
        ({}, {}, {"TASKMESH_ADRESS": "x"}, ["TASKMESH_ADRESS", "did you mean 'address'?"]),
        ({}, {}, {"TASKMESH_WORKERS": "2"}, ["TASKMESH_WORKERS: unknown key; known are ", " concurrency, "]),
        ({}, {"wrokers": 2}, {}, ["argument wrokers: unknown key; did you mean 'workers'?"]),
        ({"concurrency": 3}, {}, {}, ["config: concurrency stands in a section: [pool]"]),
        ({"adress": "x"}, {}, {}, ["config: unknown key 'adress'; did you mean 'address' in [mesh]?"]),
        ({"max_byte": 1}, {}, {}, ["did you mean 'max_bytes' in [client] or [hub]?"]),
        ({"xyzzy": 1}, {}, {}, ["unknown section [xyzzy]; known are client, hub"]),
        ({}, {}, {"TASKMESH_QUEUES": ","}, ["pool.queues has to be a list of queue names, at least one"]),
        ({"pool": {"queues": []}}, {}, {}, ["at least one, not []"]),
        ({"hub": {"max_bytes": "infMiB"}}, {}, {}, ["hub.max_bytes has to be bytes", "not 'infMiB'"]),
        ({"hub": {"max_bytes": "1e400kb"}}, {}, {}, ["hub.max_bytes has to be bytes"]),
        ({"hub": {"max_bytes": 1 << 61}}, {}, {}, ["hub.max_bytes may be 1,152,921,504,606,846,976 at most"]),
        ({"hub": {"lease": 10**400}}, {}, {}, ["hub.lease has to be seconds"]),
        (
            {},
            {},
            {"TASKMESH_OPEN_TIMEOUT": "1e300"},
            ["mesh.open_timeout may be 1,000,000,000 at most, not '1e300'"],
        ),
        (
            {},
            {"concurrency": "100000000"},
            {},
            ["may be 4,096 at most (start further pools for more), not '100000000'"],
        ),
        (5, {}, {}, ["config= has to be a TOML file, a mapping of sections or a Config, not 5"]),
    ],
)
def test_bad_setting_is_named_with_the_cure(source, overrides, environ, words):
    with pytest.raises(ConfigError) as caught:
        load(source, overrides, environ=environ)

    for word in words:
        assert word in str(caught.value)


def test_all_problems_are_told_at_once_with_the_files_name(folder):
    file = folder / "taskmesh.toml"
    file.write_text("[hub]\nleas = 1\nbeat = 'x'\n[pol]\n")

    with pytest.raises(ConfigError) as caught:
        load(environ={}, directory=folder)

    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(str(file)) for line in lines)


@pytest.mark.parametrize(
    "content", ["tool = 3", "tool = 'taskmesh'", "[tool]\ntaskmesh = 3", "[[tool.taskmesh]]"]
)
def test_pyproject_whose_section_is_none_is_named(folder, content):
    file = folder / "pyproject.toml"
    file.write_text(content)

    for source in (None, file):
        with pytest.raises(ConfigError, match=re.escape("toml: tool.taskmesh has to be a section: [tool.")):
            load(source, environ={}, directory=folder)


def test_pyproject_that_says_nothing_of_us_is_passed_over(folder):
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    assert load(environ={}, directory=folder) == Config()
    assert load(folder / "pyproject.toml", environ={}) == Config()


def test_as_many_slots_as_a_pool_may_have_are_taken():
    assert load({"pool": {"concurrency": MOST_SLOTS}}, environ={}).pool.slots == MOST_SLOTS
    with pytest.raises(ConfigError, match="workers= may be 4,096 at most"):
        Mesh(workers=MOST_SLOTS + 1)
    with pytest.raises(ConfigError, match="max_workers may be 4,096 at most"):
        MeshExecutor(max_workers=MOST_SLOTS + 1)


@pytest.mark.parametrize("content", [b"[hub\n", b"\xff\xfe", b"x = " + b"9" * 5000, b"x = " + b"[" * 5000])
def test_file_that_is_no_toml_is_named(folder, content):
    file = folder / "taskmesh.toml"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=re.escape("taskmesh.toml")):
        load(environ={}, directory=folder)


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_left_alone():
    environ = {
        "TASKMESH_SERVICE_HOST": "10.0.0.1",
        "TASKMESH_PORT": "tcp://10.0.0.1:5550",
        "TASKMESH_PORT_5550_TCP_ADDR": "10.0.0.1",
        "TASKMESH_HUB_SERVICE_PORT_GATEWAY": "5550",
        "TASKMESH_HUB_PORT_5550_TCP": "tcp://10.0.0.1:5550",
    }

    assert load({}, environ=environ) == Config()


def test_working_directory_that_is_gone_is_told(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(ConfigError, match="working directory has been deleted"):
        load(environ={})
    assert load({}, environ={}) == Config()


@pytest.mark.parametrize(
    ("section", "machine"), [(HubConfig, HubSettings), (PoolConfig, PoolSettings)], ids=["hub", "pool"]
)
def test_a_setting_and_the_machine_it_is_for_have_one_default(section, machine):
    defaults = {field.name: field.default for field in dataclasses.fields(section)}
    own = {field.name: field.default for field in dataclasses.fields(machine)}
    same = (defaults.keys() & own.keys()) - {
        "versions",
        "max_bytes",
    }  # a word for the first, the memory's share

    assert {"beat", "lease", "max_pools"} <= same or {"grace", "queues"} <= same
    assert {name: own[name] for name in same} == {name: defaults[name] for name in same}
