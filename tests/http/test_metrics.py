"""Figures: the text that Prometheus reads, and a hub's count of its queues."""

import re

from taskmesh.http.metrics import QUEUE_HELP, Family, Times, exposition
from taskmesh.hub.metrics import hub_families, queues
from tests.core.rig import HubRig, spec

IDLE = dict.fromkeys(QUEUE_HELP, 0)


def test_a_family_is_written_with_help_type_and_samples():
    family = Family("taskmesh_x", "What\nit is.", [({"queue": "a"}, 1), ({"queue": 'b"\\\n'}, 0.25)])

    assert exposition([family]).splitlines() == [
        r"# HELP taskmesh_x What\nit is.",
        "# TYPE taskmesh_x gauge",
        'taskmesh_x{queue="a"} 1',
        r'taskmesh_x{queue="b\"\\\n"} 0.25',
    ]


def test_a_family_without_labels():
    assert exposition([Family("n_total", "N.", 3)]).endswith("# TYPE n_total counter\nn_total 3\n")


def test_a_histogram_has_buckets_sum_and_count():
    times = Times([(0.0001, 1), (0.0004, 3)], 5, 1.5)

    assert exposition([Family("t_seconds", "T.", [({"task": "f"}, times)])]).splitlines() == [
        "# HELP t_seconds T.",
        "# TYPE t_seconds histogram",
        't_seconds_bucket{task="f",le="0.0001"} 1',
        't_seconds_bucket{task="f",le="0.0004"} 3',
        't_seconds_bucket{task="f",le="+Inf"} 5',
        't_seconds_sum{task="f"} 1.5',
        't_seconds_count{task="f"} 5',
    ]


def test_a_thousand_functions_are_fifty_and_one_more():
    rig = HubRig()
    rig.client()
    session = rig.join("p", slots=2000)
    for number in range(120):
        rig.submit(one=spec(f"f{number}"))
    rig.report(session, done=tuple(rig.held[session]), elapsed=0.01)

    text = exposition(hub_families(rig.hub, {}))
    counts = re.findall(r'^taskmesh_task_run_seconds_count{task="(.*)"} (\d+)$', text, re.MULTILINE)
    assert len(counts) == 51
    assert dict(counts)["_other"] == "70"
    assert re.search(
        r'^taskmesh_task_outcomes_total{task="_other",outcome="succeeded"} 70$', text, re.MULTILINE
    )


def test_queues_count_what_waits_what_pools_have_and_who_serves():
    rig = HubRig()
    rig.client()
    session = rig.join("p", slots=2)
    rig.join("q", slots=3, queues=["default", "heavy"], instance=2)
    rig.submit(count=9)
    rig.submit(count=2, one=spec(queue="nobody"))

    found = queues(rig.hub)

    held = sum(map(len, rig.held.values()))
    assert held == 5
    assert found == {
        "default": {"depth": 4, "running": 5, "pools": 2, "slots": 5},
        "heavy": {"depth": 0, "running": 0, "pools": 1, "slots": 3},
        "nobody": {**IDLE, "depth": 2},
    }
    rig.beat(session, state="draining")
    assert queues(rig.hub)["default"]["slots"] == 3


def test_a_queue_is_empty_again_when_its_tasks_have_ended():
    rig = HubRig()
    rig.client()
    session = rig.join("p", slots=2)
    rig.submit(count=2)
    rig.report(session, done=tuple(rig.held[session]))

    assert queues(rig.hub) == {"default": {"depth": 0, "running": 0, "pools": 1, "slots": 2}}


def test_a_hub_s_figures_have_one_name_each_and_go_up():
    rig = HubRig()
    rig.client()
    session = rig.join("p", slots=2)
    rig.submit(count=2)
    rig.report(session, done=tuple(rig.held[session]))

    lines = exposition(hub_families(rig.hub, {})).splitlines()

    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert sorted(set(names)) == sorted(names)
    assert "taskmesh_tasks_finished_total 2" in lines
    assert 'taskmesh_task_transitions_total{state="queued",cause="succeed"} 2' in lines
    assert 'taskmesh_pools{state="ready"} 1' in lines
