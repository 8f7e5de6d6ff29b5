"""Schedules as the hub decides them: overlap, catch-up, definitions, clocks that are set."""

import random
from collections import Counter

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine import clients, schedules
from taskmesh.hub.machine.books.ledger import states_of
from taskmesh.hub.machine.books.schedule import FEW
from taskmesh.hub.machine.books.ticks import MOST_COUNTED
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import FIRING, Run
from taskmesh.messages.schedules import Declaration, Timing
from tests.core.clockwork import HOUR, WALL, Clockwork
from tests.core.rig import HubRig, number_of, spec

# --- firings ----------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Clockwork:
    return Clockwork()


def test_a_firing_is_named_for_its_tick_and_told_it(world):
    world.put(cron="30 2 * * *")
    world.go(2.5 * HOUR)

    assert world.ticks == [2.5 * HOUR]
    assert world.names == ["n@2026-11-23T02:30:00Z"]


def test_a_period_fires_at_each_multiple_and_does_not_drift():
    world = Clockwork(WALL + 0.4)
    world.put(period=1.0, overlap="allow")
    world.go(300.0)

    assert world.ticks == [float(second) for second in range(1, 301)]


def test_the_house_keeps_nothing_of_firings_that_have_ended(world):
    world.put(period=1.0)
    for _ in range(50):
        world.go(1.0)
        world.finish()
    ledger = world.rig.hub.state.ledger

    assert world.view()["fired"] == 50
    assert not ledger.count
    assert not any(states_of(ledger).values())
    house = ledger.accounts.get(world.rig.hub.state.house.clients[""])
    assert house is None or house.finished.pieces <= 1
    assert clients.orphans(world.rig.hub.state) == 0


def test_a_failed_firing_is_counted_and_logged(world):
    world.put(period=60.0)
    world.go(60.0)
    [key] = world.rig.held[world.session]
    world.rig.fail(world.session, key, text="boom")

    assert world.events("task.failed")[0]["text"] == "boom"
    assert world.view()["failed"] == 1


def test_firings_are_in_the_figures_of_their_function(world):
    world.put(period=60.0)
    world.go(60.0)
    world.finish()

    assert world.rig.hub.state.diagnostics.functions.by_name["f"].run.count == 1


def test_nothing_fires_before_the_clock_is_known():
    rig = HubRig()
    rig.client()
    rig.tell(ev.FromClient(1, m.PutSchedule(1, Declaration("n", Timing(period=1.0), spec(kind=FIRING), b""))))
    rig.after(5.0)

    assert not rig.tasks


def declared(name: str, user: str, *, world: Clockwork, **timing: object) -> str:
    declaration = Declaration(name, Timing(**timing), spec("f", kind=FIRING), b"call")
    return schedules.declare(world.rig.hub.state, declaration, user)


@pytest.mark.parametrize("mallory", ["client:mallory", ""])
def test_the_schedules_of_one_user_fire_so_often_together_and_no_more(world, mallory):
    for n in range(10):
        assert not declared(f"n{n}", mallory, world=world, period=0.01)
    assert "more than 1,000 times a second" in declared("more", mallory, world=world, period=60.0)
    assert not declared("hers", "client:alice", world=world, period=0.01)
    assert not declared("n0", mallory, world=world, period=0.01), "it is counted once"
    assert not declared("n0", mallory, world=world, period=0.02)
    assert not declared("more", mallory, world=world, period=0.02)
    schedules.remove(world.rig.hub.state, "n1", "for room")
    assert not declared("n1", mallory, world=world, period=0.01)
    assert declared("another", mallory, world=world, cron="* * * * *")


def test_one_user_has_a_part_of_the_schedules_that_a_hub_keeps(world, monkeypatch):
    monkeypatch.setattr(schedules, "MOST_OF_USER", 3)
    told = [declared(f"n{n}", "client:mallory", world=world, period=60.0) for n in range(4)]
    assert told == ["", "", "", "client:mallory has 3 schedules already: remove some of them"]
    assert not declared("hers", "client:alice", world=world, period=60.0)
    schedules.on_revoked(world.rig.hub.state, frozenset({"client:mallory"}))
    assert not declared("n3", "client:mallory", world=world, period=60.0)


def test_a_full_hub_skips_a_tick_and_says_so():
    world = Clockwork(max_tasks=3)
    world.put(period=60.0, overlap="allow")
    world.go(240.0)

    assert world.view()["fired"] == 3
    [skipped] = world.events("schedule.skipped")
    assert "hub.max_tasks" in str(skipped["text"])


# --- overlap and catch-up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "fired", "skipped"), [("skip", 1, 3), ("allow", 4, 0)])
def test_overlap(world, overlap, fired, skipped):
    world.put(period=60.0, overlap=overlap)
    world.go(240.0)

    assert (world.view()["fired"], world.view()["skipped"], len(world.ticks)) == (fired, skipped, fired)
    assert len(world.events("schedule.skipped")) == skipped


@pytest.mark.parametrize("down", [0, 1, 10, 5_000])
@pytest.mark.parametrize("catchup", ["latest", "none"])
@pytest.mark.parametrize("timing", [{"period": 60.0}, {"cron": "* * * * *"}])
def test_what_was_missed_while_the_hub_stood_still(timing, catchup, down):
    world = Clockwork(WALL + 30.0)
    world.put(catchup=catchup, **timing)
    world.stand_still(down * 60.0)
    view, fired = world.view(), int(catchup == "latest" and down > 0)
    counted = min(down, MOST_COUNTED) if "cron" in timing else down

    assert world.ticks == [60.0 * down] * fired
    assert (view["fired"], view["missed"]) == (fired, counted - fired)
    events = world.events("schedule.missed")
    assert [event["count"] for event in events] == [counted - fired] * (counted > fired)
    assert all(("at least" in event["text"]) == (counted < down) for event in events)


def test_a_firing_that_is_hardly_late_has_not_been_missed(world):
    world.put(period=60.0, catchup="none")
    world.stand_still(61.5)

    assert world.ticks == [60.0]


# --- clocks that are set ----------------------------------------------------------------------------------


@pytest.mark.parametrize("timing", [{"cron": "30 * * * *"}, {"cron": "*/10 * * * *"}, {"period": 600.0}])
def test_after_a_step_back_a_schedule_waits_for_its_next_time(world, timing):
    world.put(overlap="allow", **timing)
    world.go(2 * HOUR + 1.0)
    before = world.ticks
    world.set(world.wall - HOUR)
    world.go(HOUR)
    assert world.ticks == before
    world.go(HOUR)

    assert sorted(set(world.ticks)) == world.ticks
    assert world.ticks[-1] > 2.4 * HOUR
    assert world.events("clock.stepped")[-1]["seconds"] == -3600.0


def test_four_hours_back_is_a_correction_and_times_come_again(world):
    world.put(cron="30 2 * * *", overlap="allow")
    world.go(3 * HOUR)
    world.set(world.wall - 4 * HOUR)
    world.go(4 * HOUR)

    assert world.ticks == [2.5 * HOUR, 2.5 * HOUR]


@pytest.mark.parametrize(("forward", "missed"), [(HOUR, 0), (24 * HOUR, 23)])
def test_forward_is_catching_up(forward, missed):
    world = Clockwork(WALL + 60.0)
    world.put(cron="0 * * * *", overlap="allow")
    world.set(world.wall + forward)

    assert world.ticks == [forward]
    assert world.view()["missed"] == missed


def test_a_slewed_clock_moves_ticks_and_nothing_else(world):
    world.put(period=60.0, overlap="allow")
    for _ in range(20):
        world.go(150.0)
        world.set(world.wall + 0.075)  # 500 ppm

    assert world.ticks == [60.0 * n for n in range(1, len(world.ticks) + 1)]
    assert not world.events("clock.stepped")
    assert not world.events("schedule.missed")


def test_leases_do_not_move_with_the_clock():
    rig = HubRig()
    rig.join()
    for offset in (0.0, -HOUR, HOUR, 24 * HOUR):
        rig.tell(ev.Clock(WALL + offset))

    assert not rig.closed


def test_a_suspended_machine_makes_up_for_the_newest_tick():
    world = Clockwork(WALL + 30.0)
    world.put(period=60.0, overlap="allow")
    world.set(world.wall + 600.0)  # its own clock stood still

    assert world.ticks == [600.0]
    assert world.view()["missed"] == 9


def at_task(rig: HubRig, at: float, delay: float) -> int:
    rig._next[1] += 1
    rig._submits[1] += 1
    one, seq = spec(), rig._next[1]
    run = Run(number_of(one), 0, [seq], [b"call"], delay=delay, at=at)
    rig.tell(ev.FromClient(1, m.Submit(rig._submits[1], [(number_of(one), one)], [run])))
    return seq


@pytest.mark.parametrize("step", [-30.0, 30.0])
def test_a_task_with_at_goes_by_the_clock_on_the_wall(world, step):
    world.rig.client()
    seq = at_task(world.rig, WALL + 60.0, 60.0)
    world.go(10.0)
    world.set(world.wall + step)
    world.go(49.5 - step)
    assert world.rig.state(1, seq) == "WAITING"
    world.go(1.0)

    assert world.rig.state(1, seq) == "SENT"


def test_a_hub_that_knows_no_clock_goes_by_the_client_s():
    rig = HubRig()
    rig.client()
    rig.join()
    seq = at_task(rig, WALL, 1.0)
    rig.after(1.5)

    assert rig.state(1, seq) == "SENT"


@pytest.mark.parametrize(
    ("at", "told"),
    [(WALL + 14 * HOUR, "2026-11-23T14:00:00Z"), (3e11, "the year 10000"), (1e15, "the year 10000")],
)
def test_explain_tells_the_time_on_the_wall(world, at, told):
    world.rig.client()
    seq = at_task(world.rig, at, 60.0)
    why = world.rig.why(1, seq)

    assert why == f"it does not start before {told}"


def test_explain_tells_a_delay(world):
    world.rig.client()
    seq = world.rig.depend(delay=30.0)
    why = world.rig.why(1, seq)

    assert why == "it waits 30.0 s for its time to start"


def test_cancelled_tasks_with_at_leave_the_heap(world):
    world.rig.client()
    for _ in range(5 * FEW):
        world.rig.cancel(1, at_task(world.rig, WALL + 1e6, 1e6))

    assert len(world.rig.hub.state.schedules._due) <= 2 * FEW


# --- definitions ------------------------------------------------------------------------------------------


def test_the_last_definition_counts_and_the_same_one_again_changes_nothing(world):
    for client, period in ((1, 60.0), (2, 30.0), (1, 30.0)):
        world.put(client=client, period=period)

    assert world.view()["when"] == "every 30 s"
    [changed] = world.events("schedule.changed")
    assert (changed["before"], changed["when"]) == ("every 60 s", "every 30 s")


def test_a_change_of_the_line_leaves_no_gap_and_fires_nothing_twice(world):
    world.put(period=60.0, overlap="allow")
    world.go(120.0)
    world.put(period=30.0, overlap="allow")
    world.go(60.0)

    assert world.ticks == [60.0, 120.0, 150.0, 180.0]
    assert len(set(world.names)) == 4


def test_a_schedule_stays_when_its_program_has_gone(world):
    world.put(period=1e6)
    world.rig.tell(ev.FromClient(1, m.ClientBye()))
    world.rig.after(1_000.0)

    assert "n" in world.rig.hub.state.schedules.records


def test_removing_says_whether_there_was_one_and_lets_firings_go_on(world):
    world.put(period=60.0)
    world.go(60.0)
    world.rig.tell(ev.FromClient(1, m.DropSchedule(77, "n")))
    world.rig.tell(ev.FromClient(1, m.DropSchedule(78, "n")))
    world.go(600.0)

    assert [world.answer(77)[0], world.answer(78)[0]] == [True, False]
    assert world.ticks == [60.0]
    assert world.finish() == 1


def test_a_revoked_user_s_schedules_go(world):
    world.rig.client()
    declaration = Declaration("n", Timing(period=60.0), spec(kind=FIRING), b"")
    world.rig.tell(ev.FromClient(1, m.PutSchedule(1, declaration), "client:eve"))
    world.rig.tell(ev.Revoked(frozenset({"client:eve"})))

    assert not world.rig.hub.state.schedules.records


# --- operators --------------------------------------------------------------------------------------------


def test_a_paused_schedule_misses_nothing(world):
    world.put(period=60.0)
    world.ask("schedule-pause", "n")
    world.go(600.0)
    assert world.ticks == []
    world.ask("schedule-resume", "n")
    world.go(60.0)

    assert world.ticks == [660.0]
    assert world.view()["missed"] == 0


def test_an_operator_fires_at_once():
    world = Clockwork(WALL + 5.0)
    world.put(period=60.0)
    value, _ = world.ask("schedule-run", "n")

    assert isinstance(value, dict)
    assert len(str(value["task_id"])) == 32
    assert world.ticks == [5.0]


def test_an_unknown_schedule_is_named(world):
    world.put(period=60.0)

    assert world.ask("schedule-run", "m")[1] == "no schedule 'm' is here; there are: n"


# --- by chance --------------------------------------------------------------------------------------------


def any_timing(chance: random.Random) -> dict[str, object]:
    lines = ("*/5 * * * *", "30 * * * *", "0 */2 * * *", "15 3 * * *", "* 2 * * *")
    zones = ("UTC", "Europe/Berlin", "Australia/Lord_Howe")
    times = {"period": chance.choice((60.0, 300.0, 3600.0))}
    if chance.random() < 0.6:
        times = {"cron": chance.choice(lines), "tz": chance.choice(zones)}
    return {
        **times,
        "overlap": chance.choice(("skip", "allow")),
        "catchup": chance.choice(("latest", "none")),
    }


def step(world: Clockwork, chance: random.Random) -> None:
    """Something happens."""
    name = chance.choice("abc")
    match chance.randrange(8):
        case 0:
            world.put(name, client=chance.choice((1, 2)), **any_timing(chance))
        case 1:
            world.set(world.wall + chance.choice((-0.5, -0.1, -0.001, 0.0001, 1, 30)) * HOUR)
        case 2:
            world.stand_still(chance.choice((1.0, 100.0, 5 * HOUR)))
        case 3:
            world.ask(f"schedule-{chance.choice(('pause', 'resume', 'run'))}", name)
        case 4 if keys := world.rig.held[world.session]:
            world.rig.fail(world.session, chance.choice(keys), "exception", retryable=False)
        case 5:
            world.finish()
        case _:
            world.go(chance.random() * HOUR)


@pytest.mark.parametrize("seed", range(12))
def test_no_tick_has_its_name_twice_whatever_happens(seed):
    """And the hub's books agree after each step, which the rig looks at."""
    chance = random.Random(seed)
    world = Clockwork(WALL - 150 * 24 * HOUR * chance.random(), journaled=True)
    accept, names = world.rig.hub.state.ledger.accept, Counter()

    def spied(client, entry, run, now, *, fresh):
        names[run.key] += "#run" not in run.key
        return accept(client, entry, run, now, fresh=fresh)

    world.rig.hub.state.ledger.accept = spied
    for _ in range(150):
        step(world, chance)

    assert names
    assert [name for name, count in names.items() if count > 1] == []
