"""Tasks that ignore their results over tcp: with keys, and when a hub dies that held such results."""

from pathlib import Path

from tests.harness.cluster import SETTINGS, Cluster
from tests.harness.journal import words
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

END_S = 30


def test_with_keys_the_success_is_believed_and_the_result_verified(programs: Programs, ring: Ring):
    keyed = Cluster.keyed(programs, ring)

    with keyed.mesh() as mesh:
        silent = mesh.with_options(ignore_result=True)
        first = silent.submit(workload.add, 1, 2)
        assert mesh.submit(workload.echo, first).result(END_S) == 3
        assert first.result(END_S) is None
        assert mesh.submit(workload.echo, silent.submit(workload.echo, first)).result(END_S) == 3


def test_the_next_hub_is_brought_the_call_of_a_task_whose_result_it_lacks(programs: Programs):
    cluster = Cluster(programs)
    cluster.start_hub(env=SETTINGS)
    cluster.start_worker("first")
    journal, open_gate, gate = (str(cluster.folder / name) for name in ("journal", "open", "gate"))
    Path(open_gate).touch()

    with cluster.mesh() as mesh:
        first = mesh.with_options(ignore_result=True).submit(workload.hold, journal, "first", open_gate)
        second = mesh.with_options(ignore_result=True).submit(workload.echo, first)
        assert second.result(END_S) is None
        blocker = mesh.submit(workload.hold, journal, "blocker", gate)
        third = mesh.with_options(after=blocker).submit(workload.echo, second)
        wait_until(lambda: "blocker" in words(journal), END_S)
        cluster.hub.kill()
        cluster.start_hub(env=SETTINGS)
        wait_until(lambda: words(journal).count("first") == 2, END_S)
        Path(gate).touch()

        assert third.result(END_S) == "first"
        assert blocker.result(END_S) == "blocker"
    assert sorted(words(journal)) == ["blocker", "first", "first"]
