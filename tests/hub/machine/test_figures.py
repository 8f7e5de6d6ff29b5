"""Figures of functions and groups of errors: counted as they happen, bounded, told to whom they belong."""

import math
import random

import pytest

from taskmesh.cli.output import encoded
from taskmesh.cli.views import error_groups
from taskmesh.core.events import FromClient
from taskmesh.core.ids import text_of
from taskmesh.hub.machine.figures.diagnostics import RecentEnds
from taskmesh.hub.machine.figures.errors import MOST_GROUPS, Errors, place_of
from taskmesh.hub.machine.figures.functions import BOUNDS, MOST_FUNCTIONS, OTHER, Functions, Histogram
from taskmesh.hub.machine.views import views
from taskmesh.hub.machine.views.quantities import Bytes
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, Failed, Run
from tests.core.rig import HubRig, number_of, spec

TRACE = """Traceback (most recent call last):
  File "/slot/runner.py", line 1, in run
    call()
  File "/srv/job.py", line 12, in parse
    int(text)
ValueError: bad
"""


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    rig.join(slots=4)
    return rig


def functions(rig: HubRig) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in views.status(rig.hub.state, rig.now)["functions"]}


def errors(rig: HubRig, wanted: str = "", user: str = "") -> list[dict[str, object]]:
    return views.answer(rig.hub.state, m.Query(1, "errors", wanted, 100), rig.now, user).value["groups"]


class TestHistogram:
    def test_a_quantile_is_within_19_percent(self):
        chance, found = random.Random(7), Histogram()
        times = sorted(math.exp(chance.uniform(math.log(0.0002), math.log(900))) for _ in range(5_000))
        for each in times:
            found.add(each, 1)

        for share in (0.05, 0.5, 0.95, 0.99):
            truth = times[math.ceil(share * len(times)) - 1]
            assert truth / 1.19 <= found.quantile(share) <= truth * 1.19
        assert found.total == pytest.approx(sum(times))

    def test_nothing_and_what_exceeds_all_bounds(self):
        found = Histogram()
        assert found.quantile(0.5) is None
        found.add(1e9, 3)
        assert found.quantile(0.5) == BOUNDS[-1]
        assert found.cumulative(4)[-1][1] == 0
        found.add(0.0, 1)
        assert found.quantile(0.1) == BOUNDS[0]

    def test_sums_of_buckets_grow_up_to_the_bound(self):
        found = Histogram()
        for seconds in (0.0001, 0.0002, 0.05, 1.0):
            found.add(seconds, 2)

        sums = found.cumulative(4)
        assert [bound for bound, _ in sums[:3]] == pytest.approx([0.0001, 0.0004, 0.0016])
        assert [count for _, count in sums] == sorted(count for _, count in sums)
        assert sums[0][1] == 2
        assert sums[-1][1] == 8


def test_runs_waits_and_ends_are_counted_by_function(rig):
    session = rig.session()
    fast, slow = spec("fast"), spec("slow", max_retries=0)
    rig.submit(count=3, one=fast)
    rig.report(session, done=tuple(rig.held[session]), elapsed=0.03)
    (seq,) = rig.submit(1, one=slow)
    rig.fail(session, (1, seq, 1), text="bad", type_name="ValueError", traceback=TRACE)

    found = functions(rig)
    assert (found["fast"]["succeeded"], found["fast"]["failed"]) == (3, 0)
    assert found["fast"]["run"]["p50"] == pytest.approx(0.03, rel=0.19)
    assert found["fast"]["slot_seconds"] == pytest.approx(0.09)
    assert (found["slow"]["succeeded"], found["slow"]["kinds"]) == (0, {"exception": 1})
    assert found["slow"]["run"]["p50"] is None


def test_a_wait_is_from_acceptance_or_its_time_to_the_first_start():
    rig = HubRig()
    rig.client()
    rig.submit(1, one=spec("now"))
    later = spec("later")
    run = Run(number_of(later), 0, [2], [b"x"], delay=5.0)
    rig.tell(FromClient(1, m.Submit(2, [(number_of(later), later)], [run])))
    rig.after(2.0)
    session = rig.join(slots=4)
    for _ in range(8):
        rig.beat(session)
        rig.after(0.5)

    assert functions(rig)["now"]["wait"]["p50"] == pytest.approx(2.0, rel=0.19)
    assert rig.hub.state.diagnostics.functions.by_name["later"].wait.count == 1
    assert functions(rig)["later"]["wait"]["p50"] < 1.0


def test_a_retry_is_no_second_wait(rig):
    session = rig.session()
    (seq,) = rig.submit(1, one=spec("again", max_retries=1, backoff=0.0, jitter=False))
    rig.fail(session, (1, seq, 1))
    rig.after(0.1)
    rig.report(session, done=((1, seq, 2),))

    assert rig.hub.state.diagnostics.functions.by_name["again"].wait.count == 1


def test_names_beyond_the_bound_share_one_row():
    found = Functions()
    for number in range(MOST_FUNCTIONS + 50):
        found.of(f"f{number}").run.add(0.1, 1)

    assert len(found.by_name) == MOST_FUNCTIONS + 1
    assert found.by_name[OTHER].run.count == 50
    assert found.of("f7").name == "f7"


class TestErrors:
    def test_each_failed_attempt_counts_in_the_group_of_its_cause(self, rig):
        session = rig.session()
        for text in ("one", "two"):
            (seq,) = rig.submit(1, one=spec("parse", max_retries=0))
            rig.fail(session, (1, seq, 1), text=text, type_name="ValueError", traceback=TRACE)
        (seq,) = rig.submit(1, one=spec("parse", max_retries=0))
        rig.fail(session, (1, seq, 1), "timeout", type_name="TaskTimeout")

        latest, first = errors(rig)
        assert (latest["kind"], latest["count"], latest["place"]) == ("timeout", 1, "")
        assert (first["name"], first["type"], first["count"]) == ("parse", "ValueError", 2)
        assert first["place"] == "job.py:12 in parse"
        assert [sample["text"] for sample in first["samples"]] == ["two", "one"]
        assert [group["type"] for group in errors(rig, "job.py")] == ["ValueError"]
        assert errors(rig, "elsewhere") == []

    def test_samples_are_told_to_their_users_and_to_operators(self, rig):
        (seq,) = rig.submit(1, one=spec("parse", max_retries=0))
        rig.fail(rig.session(), (1, seq, 1), text="secret", type_name="ValueError")

        assert "secret" in repr(errors(rig, user="operator:olga"))
        assert "secret" not in repr(errors(rig, user="client:mallory"))
        assert errors(rig, user="client:mallory")[0]["count"] == 1

    def test_memory_for_them_has_a_bound_and_what_is_left_out_is_counted(self):
        found = Errors()
        for number in range(MOST_GROUPS + 100):
            for _ in range(5):
                failure = Failed(1, 1, 1, "exception", f"Error{number}", "x" * 10_000, TRACE * 100)
                found.add("f", 1, "", failure, 5.0)

        assert len(found.groups) == MOST_GROUPS
        assert found.ungrouped == 500
        group = next(reversed(found.groups.values()))
        assert (group.count, len(group.samples), len(group.samples[0].text)) == (5, 3, 500)

    def test_whoever_asks_is_told_how_many_are_left_out(self, rig):
        for number in range(MOST_GROUPS + 2):
            (seq,) = rig.submit(1, one=spec("parse", max_retries=0))
            rig.fail(rig.session(), (1, seq, 1), type_name=f"Error{number}")

        found = views.answer(rig.hub.state, m.Query(1, "errors", "Error7", 100), rig.now, "").value
        assert found["ungrouped"] == 2
        told = error_groups(found).splitlines()
        assert told[0].startswith("1 x parse: exception: Error7")
        assert told[-1].startswith("2 failed attempts are left out: ")

    def test_the_place_is_the_innermost_frame(self):
        assert place_of(TRACE) == "job.py:12 in parse"
        assert place_of("no frames") == ""


def test_how_a_task_has_ended_is_told_after_its_client_has_gone_too(rig):
    session = rig.session()
    many = rig.submit(1, count=3, one=spec("good"))
    rig.report(session, done=tuple(rig.held[session]))
    (kept,) = rig.submit(1, one=spec("kept", keep=60.0))
    rig.report(session, done=tuple(rig.held[session]))
    rig.submit(1, count=2, one=spec("bad", max_retries=0))
    failed, given_up = (seq for _, seq, _ in rig.held[session])
    rig.fail(session, (1, failed, 1), worker="p/0")
    rig.cancel(1, given_up)
    rig.tell(FromClient(1, m.ClientBye()))
    rig.after(1_000.0)

    def told(seq: int) -> tuple[object, ...]:
        found = views.answer(rig.hub.state, m.Query(1, "task", text_of(1 << 64 | seq), 1), rig.now).value
        return found["name"], found["state"], rig.hub.state.wall - found["ended"]

    assert [told(seq) for seq in many] == [("good", "succeeded", 1_000.0)] * 3
    assert told(kept) == ("kept", "succeeded", 1_000.0)
    assert told(failed) == ("bad", "failed", 1_000.0)
    assert told(given_up) == ("bad", "cancelled", 1_000.0)
    rows = views.answer(rig.hub.state, m.Query(1, "tasks", "cancelled", 9), rig.now).value
    assert [row["task_id"] for row in rows] == [text_of(1 << 64 | given_up)]


def test_the_ids_of_the_latest_thousand_ends_are_kept_and_few_more():
    recent = RecentEnds()
    for number in range(100):
        seqs = list(range(number * 300, number * 300 + 300))
        recent.succeeded(DoneRun(0, 1, 1, "p/0", seqs, [b""] * 300, 1.0), "f", "default", 5.0)

    known = [seq for seq in range(30_000) if recent.success_of(1 << 64 | seq)]
    assert known[-1_200:] == list(range(30_000 - 1_200, 30_000))
    assert known[:-1_200] == list(range(299, 30_000 - 1_200, 300)), "the last one of each report"


def test_the_latest_ends_can_be_asked_for(rig):
    session = rig.session()
    rig.submit(1, count=2, one=spec("good"))
    rig.report(session, done=tuple(rig.held[session]))
    (seq,) = rig.submit(1, one=spec("bad", max_retries=0))
    rig.fail(session, (1, seq, 1), worker="p/0")

    def ends(state: str) -> list[tuple[object, ...]]:
        rows = views.answer(rig.hub.state, m.Query(1, "tasks", state, 100), rig.now).value
        return [(row["name"], row["state"], row["attempt"], row["pool"]) for row in rows]

    assert ends("succeeded")[0] == ("good", "succeeded", 1, "p")
    assert ends("failed") == [("bad", "failed", 1, "p")]
    for _ in range(1_100):
        rig.submit(1, one=spec("good"))
        rig.report(session, done=tuple(rig.held[session]))
    assert len(ends("succeeded")) == 100
    assert len(rig.hub.state.diagnostics.recent.successes) == 1_000


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_500, "1.5 kB"),
        (268_435_456, "268.4 MB"),
        (25_276_514_304, "25.3 GB"),
    ],
)
def test_bytes_have_a_unit_for_people_and_are_a_number_for_programs(size, text):
    assert f"{Bytes(size)}" == text
    assert encoded({"size": Bytes(size)}) == f'{{"size": {size}}}'
