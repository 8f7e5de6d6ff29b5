"""Abuse list, the row about what stands in a hub's journal: A17 of docs/explanation/security.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from taskmesh.config import load
from taskmesh.errors import BadSignature
from taskmesh.hub.journal.entries import decode, encode
from taskmesh.hub.journal.journal import journal_store
from taskmesh.hub.journal.store import Changes
from taskmesh.messages.journal_entries import JournalKept
from tests.harness.cluster import SETTINGS, Cluster
from tests.harness.journal import words
from tests.hosting import workload

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]
END_S = 30


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "tasks.journal")


@pytest.fixture
def keyed(programs, ring, journal) -> Cluster:
    """A hub with keys and a journal, and the pool `first`."""
    programs.env |= {**SETTINGS, "TASKMESH_JOURNAL": journal}
    return Cluster.keyed(programs, ring)


def rewrite(journal: str, change: Callable[[dict[bytes, bytes]], dict[bytes, bytes]]) -> None:
    """Somebody who can write to the journal changes entries."""
    store = journal_store(load(environ={"TASKMESH_JOURNAL": journal}).hub)
    try:
        opened = store.open()
        entries = dict(entry for portion in store.load() for entry in portion)
        store.write(opened.number + 1, Changes(change(entries)))
    finally:
        store.close()


@pytest.mark.parametrize("how", ["changed", "another task's", "unsigned"])
def test_A17_a_kept_result_that_was_changed_is_refused_by_the_client(keyed, journal, tmp_path, how):
    log = str(tmp_path / "log")
    with keyed.mesh() as mesh:
        for key in ("k", "l"):
            submitted = mesh.with_options(key=key, keep=600).submit(workload.noted, (log, key))
            assert submitted.result(END_S) == key
    keyed.hub.terminate()
    keyed.hub.wait()

    def lie(entries: dict[bytes, bytes]) -> dict[bytes, bytes]:
        kept = {key: decode(key.decode(), data) for key, data in entries.items() if key.startswith(b"k")}
        by_key = {entry.key: entry for entry in kept.values() if isinstance(entry, JournalKept)}
        payload = by_key["k"].done.payloads[0]
        lies = {
            "changed": payload[:-3] + b"X" + payload[-2:],
            "another task's": by_key["l"].done.payloads[0],
            "unsigned": payload[72:],  # without the signature for its task, and the one for its key
        }
        by_key["k"].done.payloads[:] = [lies[how]]
        return {key: encode(entry) for key, entry in kept.items()}

    rewrite(journal, lie)
    keyed.start_hub()
    with keyed.mesh() as mesh:
        error = mesh.with_options(key="k", keep=600).submit(workload.noted, (log, "k")).exception(END_S)
        assert mesh.with_options(key="l", keep=600).submit(workload.noted, (log, "l")).result(END_S) == "l"
    assert isinstance(error, BadSignature)
    assert words(Path(log)) == ["k", "l"], "neither ran again"


@pytest.mark.smoke
def test_A17_a_hub_unpickles_nothing_and_refuses_what_is_no_entry(programs, journal, tmp_path):
    marker = tmp_path / "unpickled"
    cluster = Cluster(programs)
    settings = {**SETTINGS, "TASKMESH_JOURNAL": journal}
    cluster.start_hub(settings)
    with cluster.mesh() as mesh:
        mesh.with_options(detach=True).submit(workload.add, 1, 2)
    cluster.hub.terminate()
    cluster.hub.wait()
    bomb = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    rewrite(journal, lambda entries: dict.fromkeys(entries, bomb))

    outcome = programs.run("hub", "--bind", "tcp://127.0.0.1:0", env=settings)
    assert outcome.returncode == 2
    assert "cannot read" in outcome.stderr
    assert not marker.exists()
