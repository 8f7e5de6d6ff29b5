"""Dead letters: what is kept of tasks that end badly while nobody waits for them."""

import copy

import pytest

from taskmesh.core import events as ev
from taskmesh.core.ids import task_id, text_of
from taskmesh.hub.machine.books import dead_letters
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import PROMISE
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


def ask(rig: HubRig, verb: str, target: str = "", client: int = 1) -> m.Answer:
    number = 1000 + len(rig.told[client])
    query = m.Query(number, verb, target, 100) if verb != "dead-purge" else None
    rig.tell(ev.FromClient(client, query or m.Command(number, verb, target)))
    rig.write()
    [found] = [said for said in rig.told[client] if isinstance(said, m.Answer) and said.number == number]
    return found


def fail_all(rig: HubRig, session: int, **more: object) -> None:
    for _ in range(5):
        for key in list(rig.held[session]):
            rig.fail(session, key, text="bad", **more)
        rig.after(0.2)
        rig.beat(session)


def test_a_detached_task_that_fails_is_a_letter_with_its_last_failure(rig):
    session = rig.join()
    (seq,) = rig.submit(one=DETACHED)
    fail_all(rig, session)

    (row,) = ask(rig, "dead").value
    assert (row["task_id"], row["state"], row["attempts"]) == (text_of(task_id(1, seq)), "failed", 2)
    told = ask(rig, "dead-letter", row["task_id"]).value
    assert (told["attempts"], told["text"]) == (2, "bad")


def test_its_call_is_told_as_it_was_to_the_user_whose_task_it_was():
    rig = HubRig()
    for client, user in ((1, "client:ann"), (2, "client:bob")):
        rig.tell(ev.FromClient(client, m.ClientHello(client, 0), user))
    session = rig.join()
    (seq,) = rig.submit(one=DETACHED, key="k")
    fail_all(rig, session)
    letter = text_of(task_id(1, seq))

    told = ask(rig, "dead-call", letter)
    other = ask(rig, "dead-call", letter, client=2)

    assert (told.value, told.specs) == (letter, [DETACHED])
    assert [(run.seqs, run.payloads, run.key) for run in told.runs] == [([seq], [b"x" * 8], "k")]
    assert (other.runs, "client:ann" in other.error) == ([], True)


def test_the_call_of_one_that_had_results_of_others_cannot_be_run_again_and_the_reason_is_told(rig):
    session = rig.join(slots=8)
    (good,) = rig.submit(one=spec("good"))
    final = rig.depend(good, one=spec("final", detach=True))
    rig.report(session, done=((1, good, 1),))
    fail_all(rig, session)
    assert list(letters(rig)) == [task_id(1, final)]

    assert "submit it again from a program" in ask(rig, "dead-call", text_of(task_id(1, final))).error


def test_a_task_that_never_started_since_another_failed_is_none(rig):
    session = rig.join()
    (root,) = rig.submit(one=DETACHED)
    rig.depend(root, one=spec("blocked", detach=True))
    fail_all(rig, session)

    assert list(letters(rig)) == [task_id(1, root)]


def test_a_promise_that_expires_is_none(rig):
    rig.submit(one=spec(kind=PROMISE, detach=True, expires=1.0))
    rig.after(2.0)
    rig.beat(rig.join())

    assert letters(rig) == {}


@pytest.mark.parametrize("one", [spec(), spec(detach=True)])
def test_of_a_task_that_a_client_waits_for_and_of_a_cancelled_one_there_is_none(rig, one):
    session = rig.join()
    (seq,) = rig.submit(one=one)
    if one.detach:
        rig.cancel(1, seq)
    else:
        fail_all(rig, session)
    assert letters(rig) == {}


def test_with_a_journal_letters_survive():
    rig = HubRig(journaled=True, lease=2.0)
    rig.tell(ev.JournalRead({}, WALL))
    rig.client()
    session = rig.join()
    (root,) = rig.submit(one=DETACHED)
    fail_all(rig, session)
    rig.after(1.0)
    rig.write()
    assert sorted(key[0] for key in rig.journal if key[0] != "k") == ["f"]

    second = HubRig(journaled=True, lease=2.0)
    second.journal = copy.deepcopy(rig.journal)
    second.tell(ev.JournalRead(copy.deepcopy(rig.journal), WALL + 60.0))
    assert second.hub.state.letters.view() == rig.hub.state.letters.view()
    second.client()
    letter = text_of(task_id(1, root))
    assert ask(second, "dead-call", letter).runs == ask(rig, "dead-call", letter).runs
    assert ask(second, "dead-purge", letter).value
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


@pytest.mark.parametrize("verb", ["dead-letter", "dead-call", "dead-purge"])
def test_of_one_that_is_not_there_it_says_where_to_look(rig, verb):
    assert "taskmesh dead list" in ask(rig, verb, "x").error


def test_the_last_lines_of_its_process_are_in_the_letter_and_not_in_what_clients_get(rig):
    session = rig.join()
    (seq,) = rig.submit(one=DETACHED)
    rig.fail(session, rig.held[session][0], retryable=False, output="last words")

    (letter,) = letters(rig).values()
    assert letter.failed.output == "last words"
    told = [end for said in rig.told[1] if isinstance(said, m.Deliver) for end in said.failed]
    assert [(end.seq, end.output) for end in told] == [(seq, "")]


def test_letters_go_with_the_key_of_their_user():
    rig = HubRig()
    rig.tell(ev.FromClient(1, m.ClientHello(1, 0), "client:ann"))
    session = rig.join()
    rig.submit(one=spec(detach=True))
    fail_all(rig, session)
    assert len(letters(rig)) == 1
    rig.tell(ev.Revoked(frozenset({"client:ann"})))
    assert letters(rig) == {}
