"""Schedules as the hub decides them: overlap, catch-up, definitions, clocks that are set (W20, W21)."""

import random
from collections import Counter

import pytest

from taskmesh.core import events as ev
from taskmesh.core.hub import schedules as module
from taskmesh.wire import messages as m
from taskmesh.wire.runs import FIRING, Run
from taskmesh.wire.schedules import Declaration, Timing
from tests.core.clockwork import HOUR, WALL, Clockwork
from tests.core.rig import HubRig, number_of, spec

# --- firings ----------------------------------------------------------------------------------------------


def test_a_firing_is_named_for_its_tick_and_told_it():
    world = Clockwork()
    world.put(cron="30 2 * * *")
    world.go(2.5 * HOUR)

    assert world.ticks == [2.5 * HOUR]
    assert world.names == ["n@2026-11-23T02:30:00Z"]


def test_w17_a_period_fires_at_each_multiple_and_does_not_drift():
    world = Clockwork(WALL + 0.4)
    world.put(period=1.0, overlap="allow")
    world.go(300.0)

    assert world.ticks == [float(second) for second in range(1, 301)]


def test_the_house_keeps_nothing_of_firings_that_have_ended():
    world = Clockwork()
    world.put(period=1.0)
    for _ in range(50):
        world.go(1.0)
        world.finish()
    ledger = world.rig.hub.state.ledger

    assert world.view()["fired"] == 50
    assert not ledger.tasks
    assert ledger.accepted == ledger.finished
    house = ledger.accounts.get(world.rig.hub.state.house.client)
    assert house is None or house.finished.pieces <= 1
    assert world.rig.hub.clients.orphans == 0


def test_a_failed_firing_is_counted_and_logged():
    world = Clockwork()
    world.put(period=60.0)
    world.go(60.0)
    [key] = world.rig.held[world.session]
    world.rig.fail(world.session, key, text="boom")

    assert world.events("task.failed")[0]["text"] == "boom"
    assert world.view()["failed"] == 1


def test_jitter_puts_firings_off_within_bounds_and_leaves_their_ticks():
    world = Clockwork()
    for number in range(20):
        world.put(f"n{number}", cron="0 * * * *", jitter=100.0)
    world.go(HOUR)
    assert len(world.ticks) < 20
    world.rig.after(100.0)

    assert world.ticks == [HOUR] * 20


def test_nothing_fires_before_the_clock_is_known():
    rig = HubRig()
    rig.client()
    rig.tell(ev.FromClient(1, m.PutSchedule(1, Declaration("n", Timing(period=1.0), spec(kind=FIRING), b""))))
    rig.after(5.0)

    assert not rig.hub.state.ledger.tasks


def test_a_full_hub_skips_a_tick_and_says_so():
    world = Clockwork(max_tasks=3)
    world.put(period=60.0, overlap="allow")
    world.go(240.0)

    assert world.view()["fired"] == 3
    [skipped] = world.events("schedule.skipped")
    assert "hub.max_tasks" in str(skipped["text"])


# --- overlap and catch-up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "fired", "skipped", "pushed"),
    [("skip", 1, 3, 1), ("queue", 2, 2, 1), ("allow", 4, 0, 4), ("replace", 4, 0, 4)],
)
def test_overlap(overlap, fired, skipped, pushed):
    world = Clockwork()
    world.put(period=60.0, overlap=overlap)
    world.go(240.0)

    assert (world.view()["fired"], world.view()["skipped"], len(world.ticks)) == (fired, skipped, pushed)
    assert sum(int(str(event["count"])) for event in world.events("schedule.skipped")) == skipped
    if overlap == "replace":
        assert world.names == ["n@2026-11-23T00:04:00Z"]
    if overlap == "queue":
        world.finish()
        assert world.ticks == [60.0, 120.0]  # the first that came


DOWN = (0, 1, 10, 5_000)


def expected(overlap: str, catchup: str, down: int) -> tuple[int, int, int]:
    """Firings, skipped ticks and missed ones of a hub that has stood still for so many ticks."""
    made_up = {"latest": min(1, down), "none": 0, "all": min(1_000, down)}[catchup]
    fired = {"skip": min(1, made_up), "queue": min(2, made_up)}.get(overlap, made_up)
    return fired, made_up - fired, down - made_up


@pytest.mark.parametrize("down", DOWN)
@pytest.mark.parametrize("catchup", ["latest", "none", "all"])
@pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "replace"])
def test_w21(overlap, catchup, down):
    world = Clockwork(WALL + 30.0, journaled=True)
    world.put(period=60.0, overlap=overlap, catchup=catchup)
    world.stand_still(down * 60.0)
    view = world.view()

    assert (view["fired"], view["skipped"], view["missed"]) == expected(overlap, catchup, down)
    assert sum(int(str(event["count"])) for event in world.events("schedule.missed")) == view["missed"]
    assert len(world.events("schedule.missed")) <= 1


def test_w21_cron_lines_count_the_same():
    world = Clockwork(WALL + 30.0, journaled=True)
    world.put(cron="* * * * *", overlap="allow", catchup="all")
    world.stand_still(5_000 * 60.0)

    assert (world.view()["fired"], world.view()["missed"]) == (1_000, 4_000)
    assert world.ticks == [60.0 * minute for minute in range(4_001, 5_001)]


def test_a_window_bounds_what_is_made_up_for():
    world = Clockwork(WALL + 30.0, journaled=True)
    world.put(period=60.0, overlap="allow", catchup="all", window=125.0)
    world.put("latest", period=HOUR, window=60.0)
    world.stand_still(600.0 + HOUR)

    assert (world.view()["fired"], world.view()["missed"]) == (2, 68)
    assert (world.view("latest")["fired"], world.view("latest")["missed"]) == (0, 1)


def test_a_hub_in_memory_refuses_to_make_up_for_all():
    world = Clockwork()

    assert "has no journal" in world.put(period=60.0, catchup="all")
    assert not world.rig.hub.schedules.records


# --- clocks that are set (W20) ----------------------------------------------------------------------------


def test_w20_back_an_hour_fixed_times_do_not_fire_again():
    world = Clockwork()
    world.put(cron="30 2 * * *", overlap="allow")
    world.go(2.75 * HOUR)
    world.set(world.wall - HOUR)
    world.go(22 * HOUR)

    assert world.ticks == [2.5 * HOUR]
    world.go(4 * HOUR)
    assert world.ticks == [2.5 * HOUR, 26.5 * HOUR]
    assert world.events("clock.stepped")[-1]["seconds"] == -3600.0


@pytest.mark.parametrize("timing", [{"cron": "*/10 * * * *"}, {"period": 600.0}])
def test_w20_back_an_hour_wildcards_and_periods_go_on_by_elapsed_time(timing):
    world = Clockwork()
    world.put(overlap="allow", **timing)
    world.go(2 * HOUR)
    assert world.ticks[-1] == 2 * HOUR
    world.set(world.wall - HOUR)
    world.go(HOUR - 1.0)

    assert world.ticks[12:] == [HOUR + 600.0 * n for n in range(1, 6)]
    assert world.names[12:] == [f"n@2026-11-23T01:{n}0:00Z#r1" for n in range(1, 6)]
    world.go(601.0)
    assert world.names[17:] == ["n@2026-11-23T02:00:00Z#r1", "n@2026-11-23T02:10:00Z"]
    assert len(set(world.names)) == len(world.names)


def test_w20_back_two_seconds_right_after_a_tick_fires_nothing_at_once():
    world = Clockwork()
    world.put(period=60.0, overlap="allow")
    world.go(60.0)
    world.set(world.wall - 2.0)
    world.go(50.0)

    assert world.ticks == [60.0]


def test_w20_back_four_hours_is_a_correction():
    world = Clockwork()
    world.put(cron="30 2 * * *", overlap="allow")
    world.go(3 * HOUR)
    world.set(world.wall - 4 * HOUR)
    world.go(4 * HOUR)

    assert world.ticks == [2.5 * HOUR, 2.5 * HOUR]
    assert world.names == ["n@2026-11-23T02:30:00Z", "n@2026-11-23T02:30:00Z#r1"]


@pytest.mark.parametrize(("forward", "missed"), [(HOUR, 0), (24 * HOUR, 23)])
def test_w20_forward_is_catching_up(forward, missed):
    world = Clockwork(WALL + 60.0)
    world.put(cron="0 * * * *", overlap="allow")
    world.set(world.wall + forward)

    assert world.ticks == [forward]
    assert world.view()["missed"] == missed


def test_w20_a_slewed_clock_moves_ticks_and_nothing_else():
    world = Clockwork()
    world.put(period=60.0, overlap="allow")
    for _ in range(20):
        world.go(150.0)
        world.set(world.wall + 0.075)  # 500 ppm

    assert world.ticks == [60.0 * n for n in range(1, len(world.ticks) + 1)]
    assert not world.events("clock.stepped")
    assert not world.events("schedule.missed")


def test_w20_leases_do_not_move_with_the_clock():
    rig = HubRig()
    rig.join()
    for offset in (0.0, -HOUR, HOUR, 24 * HOUR):
        rig.tell(ev.Clock(WALL + offset))

    assert not rig.closed


def test_w20_a_suspended_machine_makes_up_for_the_newest_tick():
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
def test_w20_a_task_with_at_goes_by_the_clock_on_the_wall(step):
    world = Clockwork()
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


def test_w55_explain_tells_the_time_on_the_wall():
    world = Clockwork()
    world.rig.client()
    seq = at_task(world.rig, WALL + 14 * HOUR, 60.0)
    why = world.rig.hub.views.tasks.task(f"{1:016x}{seq:016x}", world.rig.now)["why"]

    assert why == "it does not start before 2026-11-23T14:00:00Z"


def test_w55_explain_tells_a_delay():
    world = Clockwork()
    world.rig.client()
    seq = world.rig.depend(delay=30.0)
    why = world.rig.hub.views.tasks.task(f"{1:016x}{seq:016x}", world.rig.now)["why"]

    assert why == "it waits 30.0 s for its time to start"


def test_cancelled_tasks_with_at_leave_the_heap():
    world = Clockwork()
    world.rig.client()
    for _ in range(5 * module.FEW):
        world.rig.cancel(1, at_task(world.rig, WALL + 1e6, 1e6))

    assert len(world.rig.hub.schedules._due) <= 2 * module.FEW


# --- definitions ------------------------------------------------------------------------------------------


def test_the_newer_definition_counts_and_the_older_one_changes_nothing():
    world = Clockwork()
    world.put(client=1, stays=False, made=10.0, period=60.0)
    world.put(client=2, stays=False, made=20.0, period=30.0)
    world.put(client=1, stays=False, made=10.0, period=60.0)
    world.go(60.0)

    assert world.view()["when"] == "every 30 s"
    [changed] = world.events("schedule.changed")
    assert (changed["before"], changed["when"]) == ("every 60 s", "every 30 s")
    assert len(world.events("schedule.older")) == 1


def test_a_program_that_puts_a_schedule_goes_before_code():
    world = Clockwork()
    world.put(client=1, stays=False, made=10.0, period=60.0)
    world.put(client=2, period=30.0)

    assert world.view()["when"] == "every 30 s"


def test_a_change_of_the_line_leaves_no_gap_and_fires_nothing_twice():
    world = Clockwork()
    world.put(period=60.0, overlap="allow")
    world.go(120.0)
    world.put(period=30.0, overlap="allow")
    world.go(60.0)

    assert world.ticks == [60.0, 120.0, 150.0, 180.0]
    assert len(set(world.names)) == 4


def test_a_declaration_goes_an_hour_after_its_last_declarer():
    world = Clockwork()
    world.put(client=1, stays=False, period=1e6)
    world.put("kept", client=1, period=1e6)
    world.rig.tell(ev.FromClient(1, m.ClientBye()))
    world.rig.after(3_500.0)
    assert set(world.rig.hub.schedules.records) == {"n", "kept"}
    world.rig.after(200.0)

    assert set(world.rig.hub.schedules.records) == {"kept"}
    assert len(world.events("schedule.removed")) == 1


def test_a_pool_declares_and_its_end_counts():
    world = Clockwork()
    declaration = Declaration("n", Timing(period=60.0), spec(kind=FIRING), b"", 1.0, False)
    world.rig.tell(ev.FromPool(m.Declared(9, world.session, [declaration])))
    world.rig.after(4_000.0)

    assert "n" in world.rig.hub.schedules.records
    world.rig.tell(ev.FromPool(m.Bye(9, world.session, 0)))
    world.rig.after(3_700.0)
    assert not world.rig.hub.schedules.records


def test_removing_says_whether_there_was_one_and_lets_firings_go_on():
    world = Clockwork()
    world.put(period=60.0)
    world.go(60.0)
    world.rig.tell(ev.FromClient(1, m.DropSchedule(77, "n")))
    world.rig.tell(ev.FromClient(1, m.DropSchedule(78, "n")))
    world.go(600.0)

    assert [world.answer(77)[0], world.answer(78)[0]] == [True, False]
    assert world.ticks == [60.0]
    assert world.finish() == 1


def test_a_revoked_user_s_schedules_go():
    world = Clockwork()
    world.rig.client()
    declaration = Declaration("n", Timing(period=60.0), spec(kind=FIRING), b"")
    world.rig.tell(ev.FromClient(1, m.PutSchedule(1, declaration), "client:eve"))
    world.rig.tell(ev.Revoked(frozenset({"client:eve"})))

    assert not world.rig.hub.schedules.records


# --- operators --------------------------------------------------------------------------------------------


def test_a_paused_schedule_misses_nothing():
    world = Clockwork()
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


def test_w21_a_backfill_fires_each_tick_once():
    world = Clockwork()
    world.put(cron="* * * * *", overlap="skip")
    day = f"{WALL - 24 * HOUR} {WALL - 60.0} n"

    assert world.ask("schedule-backfill", day)[0] == {"schedule": "n", "fired": 1_440}
    assert world.ask("schedule-backfill", day)[0] == {"schedule": "n", "fired": 0}
    assert sorted(world.ticks) == [60.0 * n for n in range(-1_440, 0)]


def test_a_backfill_fills_what_was_skipped_or_missed_and_no_more():
    world = Clockwork()
    world.put(period=60.0)
    world.go(180.0)  # two are skipped
    world.finish()
    world.stand_still(300.0)  # four are missed
    world.finish()
    fired = len(world.ticks)
    value, _ = world.ask("schedule-backfill", f"{WALL} {WALL + 480.0} n")

    assert value == {"schedule": "n", "fired": 9 - fired}
    assert sorted(world.ticks) == [60.0 * n for n in range(9)]


def test_too_long_a_backfill_is_refused():
    world = Clockwork()
    world.put(period=1.0)
    _, error = world.ask("schedule-backfill", f"{WALL - 24 * HOUR} {WALL} n")

    assert "backfill a shorter time" in error


def test_an_unknown_schedule_is_named():
    world = Clockwork()
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
        "overlap": chance.choice(("skip", "queue", "allow", "replace")),
        "catchup": chance.choice(("latest", "none", "all")),
        "window": chance.choice((0.0, 0.0, 100.0)),
        "jitter": chance.choice((0.0, 0.0, 30.0)),
    }


def step(world: Clockwork, chance: random.Random) -> None:
    """Something happens."""
    name = chance.choice("abc")
    match chance.randrange(9):
        case 0:
            world.put(name, client=chance.choice((1, 2)), made=chance.random(), **any_timing(chance))
        case 1:
            world.set(world.wall + chance.choice((-4, -2, -1, -0.001, 0.0001, 1, 30)) * HOUR)
        case 2:
            world.stand_still(chance.choice((1.0, 100.0, 5 * HOUR)))
        case 3:
            world.ask(f"schedule-{chance.choice(('pause', 'resume', 'run'))}", name)
        case 4:
            since = world.wall - chance.random() * 2 * HOUR
            world.ask("schedule-backfill", f"{since} {since + HOUR} {name}")
        case 5 if keys := world.rig.held[world.session]:
            world.rig.fail(world.session, chance.choice(keys), "exception", retryable=False)
        case 6:
            world.finish()
        case _:
            world.go(chance.random() * HOUR)


@pytest.mark.parametrize("seed", range(12))
def test_no_tick_has_its_name_twice_whatever_happens(seed):
    """3.9: and the hub's books agree after each step, which the rig looks at."""
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
