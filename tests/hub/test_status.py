"""A real hub's status is what its type says: no key more or less, and values of its types."""

import json
from typing import get_args, get_type_hints, is_typeddict

import msgspec
import pytest

from taskmesh import Mesh
from taskmesh.messages.status import HubStatus
from tests.harness.waiting import wait_until

WAIT_S = 30
pytestmark = pytest.mark.usefixtures("processes")


def check_keys(value, kind):
    """Compare the keys of all plain data in a value with those of its type."""
    for each in (kind, *get_args(kind)):
        if is_typeddict(each):
            for one in value if isinstance(value, list) else filter(None, [value]):
                assert set(one) == set(get_type_hints(each))
                for name, own in get_type_hints(each).items():
                    check_keys(one[name], own)


@pytest.mark.parametrize("hub", ["thread", "process"])
def test_a_status_is_of_its_type_with_everything_that_it_may_have(tmp_path, hub):
    with Mesh(workers=2, hub=hub, journal=str(tmp_path / "tasks.journal")) as mesh:
        mesh.submit(divmod, 7, 2).result(WAIT_S)
        mesh.submit(divmod, 7, 0).exception(WAIT_S)
        mesh.with_options(sink="here").submit(abs, -1)
        wait_until(lambda: any(sink["waiting"] for sink in mesh.status()["sinks"]), WAIT_S)
        found = mesh.status()
        with mesh.sink("here", ack="manual") as sink:
            sink.ack(next(iter(sink)))

    check_keys(found, HubStatus)
    assert msgspec.convert(found, HubStatus) == found
    assert json.loads(json.dumps(found)) == found
    assert found["pools"][0]["slots"] == 2
    assert found["clients"][0]["key"] is found["sinks"][0]["key"] is None
    assert found["journal"] is not None
    assert found["journal"]["state"] == "connected"
    assert found["ended"]["failed"] == 1
    runs = {function["name"]: function["run"]["p50"] for function in found["functions"]}
    assert isinstance(runs["builtins.divmod"], float)


def test_a_hub_without_a_journal_says_none():
    with Mesh(workers=1) as mesh:
        found = mesh.status()

    check_keys(found, HubStatus)
    assert found["journal"] is None
    assert found["sinks"] == []
