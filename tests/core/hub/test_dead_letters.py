"""Dead letters: what is kept of tasks that end badly while nobody waits for them, and how they run again."""

import copy

import pytest

from taskmesh.core import events as ev
from taskmesh.core.hub import dead_letters
from taskmesh.core.ids import parse, task_id, text_of
from taskmesh.wire import messages as m
from taskmesh.wire.runs import DONE, MAGIC
from tests.core.rig import HubRig, spec

DETACHED = spec(detach=True, keep=60.0, max_retries=1, backoff=0.1, jitter=False)
WALL = 1_000_000.0


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def letters(rig: HubRig) -> dict:
    return rig.hub.state.letters.letters


def ask(rig: HubRig, verb: str, target: str = "") -> m.Answer:
    number = 1000 + len(rig.told[1])
    query = m.Query(number, verb, target, 100) if verb in ("dead", "dead-letter") else None
    rig.tell(ev.FromClient(1, query or m.Command(number, verb, target)))
    rig.write()
    [found] = [said for said in rig.told[1] if isinstance(said, m.Answer) and said.number == number]
    return found


def fail_all(rig: HubRig, session: int, **more: object) -> None:
    for _ in range(5):
        for key in list(rig.held[session]):
            rig.fail(session, key, text="bad", **more)
        rig.after(0.2)
        rig.beat(session)


def test_a_detached_task_that_fails_is_a_letter_with_every_attempt(rig):
    session = rig.join()
    (seq,) = rig.submit(one=DETACHED)
    fail_all(rig, session)

    (row,) = ask(rig, "dead").value
    assert (row["task_id"], row["state"], row["attempts"]) == (text_of(task_id(1, seq)), "FAILED", 2)
    told = ask(rig, "dead-letter", row["task_id"]).value
    assert [(each["attempt"], each["text"]) for each in told["history"]] == [(1, "bad"), (2, "bad")]


@pytest.mark.parametrize("one", [spec(), spec(detach=True)])
def test_of_a_task_that_a_client_waits_for_and_of_a_cancelled_one_there_is_none(rig, one):
    session = rig.join()
    (seq,) = rig.submit(one=one)
    if one.detach:
        rig.cancel(1, seq)
    else:
        fail_all(rig, session)
    assert letters(rig) == {}


def test_a_replay_is_a_new_task_whose_outcome_is_kept(rig):
    session = rig.join()
    (seq,) = rig.submit(one=DETACHED, key="k")
    fail_all(rig, session)
    told = ask(rig, "dead-replay", text_of(task_id(1, seq))).value
    assert told["tasks"] == 1
    replay = parse(told["task_id"])
    assert [(client << 64 | counter) for client, counter, _ in rig.held[session]] == [replay]

    assert "say --again" in ask(rig, "dead-replay", text_of(task_id(1, seq))).error
    rig.report(session, done=(rig.held[session][0],))
    cached = rig.hub.state.result_cache.of_task(replay, rig.now)
    assert cached is not None
    assert cached.outcome.payloads == [b"r"]
    again = ask(rig, "dead-replay-again", text_of(task_id(1, seq))).value
    assert again["task_id"] != told["task_id"]


def test_a_replay_runs_what_the_letter_has_blocked_and_computes_nothing_twice(rig):
    session = rig.join(slots=8)
    (good,) = rig.submit(one=spec("good"))
    (root,) = rig.submit(one=DETACHED)
    middle = rig.depend(root, good, one=spec("middle", detach=True))
    last = rig.depend(middle, one=spec("last", detach=True))
    rig.report(session, done=((1, good, 1),))
    fail_all(rig, session)
    assert rig.outcomes(1)[last] == "dependency"
    (row,) = ask(rig, "dead").value
    assert row["blocked"] == 2

    told = ask(rig, "dead-replay", row["task_id"]).value
    assert told["tasks"] == 3
    ran = 0
    while rig.held[session]:
        ran += 1
        rig.report(session, done=(rig.held[session][0],))
    assert ran == 3
    client = parse(told["task_id"]) >> 64
    assert all(rig.hub.state.result_cache.of_task(client << 64 | seq, rig.now) for seq in (1, 2, 3))


def test_with_a_journal_letters_survive_and_are_run_by_the_next_hub():
    rig = HubRig(journaled=True, lease=2.0)
    rig.tell(ev.JournalRead({}, WALL))
    rig.client()
    session = rig.join()
    (root,) = rig.submit(one=DETACHED)
    blocked = rig.depend(root, one=spec("blocked", detach=True, keep=60.0))
    fail_all(rig, session)
    rig.after(1.0)
    rig.write()
    assert sorted(key[0] for key in rig.journal if key[0] != "k") == ["f"], "blocked tasks are in the letter"
    assert blocked

    second = HubRig(journaled=True, lease=2.0)
    second.journal = copy.deepcopy(rig.journal)
    second.tell(ev.JournalRead(copy.deepcopy(rig.journal), WALL + 60.0))
    assert second.hub.state.letters.view() == rig.hub.state.letters.view()
    second.client()
    session = second.join()
    assert ask(second, "dead-replay", text_of(task_id(1, root))).value["tasks"] == 2
    second.report(session, done=(second.held[session][0],))
    second.report(session, done=(second.held[session][0],))
    assert second.held[session] == []
    assert ask(second, "dead-purge", text_of(task_id(1, root))).value
    assert not [key for key in second.journal if key.startswith("f")]


def test_a_task_of_the_journal_whose_client_is_away_is_a_letter():
    rig = HubRig(journaled=True, client_grace=1.0)
    rig.tell(ev.JournalRead({}, WALL))
    rig.client()
    (seq,) = rig.submit()
    rig.write()
    rig.tell(ev.ClientGone(1))
    session = rig.join()
    fail_all(rig, session)
    assert list(letters(rig)) == [task_id(1, seq)]


def test_there_are_so_many_letters_and_they_are_kept_for_so_long(rig, monkeypatch):
    monkeypatch.setattr(dead_letters, "MOST", 3)
    session = rig.join(slots=8)
    seqs = rig.submit(count=5, one=spec(detach=True))
    fail_all(rig, session)
    assert list(letters(rig)) == [task_id(1, seq) for seq in seqs[2:]]
    assert rig.hub.snapshot()["dead"]["evicted"] == 2
    rig.tell(ev.Clock(dead_letters.LIFETIME))
    rig.after(1.0)
    assert letters(rig) == {}


@pytest.mark.parametrize("verb", ["dead-letter", "dead-replay", "dead-purge"])
def test_of_one_that_is_not_there_it_says_where_to_look(rig, verb):
    assert "taskmesh dead list" in ask(rig, verb, "x").error


def test_a_signed_call_is_not_run_again_and_the_reason_is_told(rig):
    session = rig.join()
    (seq,) = rig.submit(one=spec(detach=True))
    rig.hub.state.ledger.tasks[task_id(1, seq)].payload = MAGIC + b"xxxx"
    fail_all(rig, session)
    assert "submit it again" in ask(rig, "dead-replay", text_of(task_id(1, seq))).error


def test_a_finalizer_that_fails_is_run_again_with_the_bad_end_that_it_had_got(rig):
    session = rig.join(slots=8)
    (broken,) = rig.submit(one=spec("broken"))
    final = rig.depend(broken, when=DONE, one=spec("final", detach=True))
    fail_all(rig, session)
    assert list(letters(rig)) == [task_id(1, final)]

    assert ask(rig, "dead-replay", text_of(task_id(1, final))).value["tasks"] == 1
    values = [value for message in rig.pushed for run in message.runs for value in run.values]
    assert values[-1].failed.text == "bad"


def test_a_replay_runs_although_the_bad_end_is_kept_for_its_key(rig):
    session = rig.join()
    (seq,) = rig.submit(one=DETACHED, key="k")
    rig.fail(session, rig.held[session][0], retryable=False)
    (later,) = rig.submit(one=DETACHED, key="k")
    assert rig.outcomes(1)[later] == "exception", "another attempt would end so, too"

    told = ask(rig, "dead-replay", text_of(task_id(1, seq))).value
    rig.report(session, done=(rig.held[session][0],))
    cache = rig.hub.state.result_cache
    assert cache.of_task(parse(told["task_id"]), rig.now).outcome.payloads == [b"r"]
    assert cache.of_task(task_id(1, seq), rig.now).outcome.kind == "exception", "the old one stays"
    (last,) = rig.submit(one=DETACHED, key="k")
    assert rig.outcomes(1)[last] == "done"


def test_the_replay_of_a_task_that_runs_once_at_most_is_not_run_again_by_the_next_hub():
    rig = HubRig(journaled=True)
    rig.tell(ev.JournalRead({}, WALL))
    rig.client()
    session = rig.join()
    (seq,) = rig.submit(one=spec(detach=True, keep=60.0, acks="early"))
    rig.fail(session, rig.held[session][0], retryable=False)
    assert ask(rig, "dead-replay", text_of(task_id(1, seq))).value["tasks"] == 1
    assert rig.held[session], "it runs"
    assert not [key for key in rig.journal if key[0] == "c"]


def test_the_last_lines_of_its_process_are_in_the_letter_and_not_in_what_clients_get(rig):
    session = rig.join()
    (seq,) = rig.submit(one=DETACHED)
    rig.fail(session, rig.held[session][0], retryable=False, output="last words")

    (letter,) = letters(rig).values()
    assert [each.failed.output for each in letter.attempts] == ["last words"]
    told = [end for said in rig.told[1] if isinstance(said, m.Deliver) for end in said.failed]
    assert [(end.seq, end.output) for end in told] == [(seq, "")]


def test_letters_go_with_the_key_of_their_user():
    rig = HubRig()
    rig.client(1)
    rig.hub.state.ledger.account(1).user = "client:ann"
    session = rig.join()
    rig.submit(one=spec(detach=True))
    fail_all(rig, session)
    assert len(letters(rig)) == 1
    rig.tell(ev.Revoked(frozenset({"client:ann"})))
    assert letters(rig) == {}
