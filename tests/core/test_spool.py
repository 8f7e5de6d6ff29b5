"""Reports are kept until the hub has them."""

from taskmesh.core.spool import Spool
from taskmesh.wire.messages import DoneRun, Failed, Held


def done(seq: int) -> DoneRun:
    return DoneRun(1, 1, 1, "p/0", [seq], [b"r"], 0.1)


def test_numbers_rise_and_acknowledgements_are_cumulative():
    spool = Spool()
    for seq in (1, 2, 3):
        spool.done.append(done(seq))
        assert spool.close(9, 1, 0.0).number == seq
    spool.acknowledged(2, 1.0)

    assert [results.number for results in spool.overdue(10.0, 1.0)] == [3]
    spool.acknowledged(3, 11.0)
    assert spool.empty


def test_overdue_only_after_two_and_a_half_beats_without_progress():
    spool = Spool()
    spool.done.append(done(1))
    spool.close(9, 1, 0.0)

    assert spool.overdue(2.4, 1.0) == []
    assert len(spool.overdue(2.6, 1.0)) == 1
    assert spool.overdue(2.7, 1.0) == [], "just sent"


def test_a_large_report_is_given_time():
    """It was sent again and again while the first copy was on its way."""
    spool = Spool()
    spool.done.append(DoneRun(1, 1, 1, "p/0", [1], [bytes(10 << 20)], 0.1))
    spool.close(9, 1, 0.0)

    assert spool.overdue(12.0, 1.0) == []
    assert len(spool.overdue(12.6, 1.0)) == 1


def test_a_new_session_makes_news_of_what_is_unacknowledged():
    spool = Spool()
    spool.done.append(done(1))
    spool.failed.append(Failed(1, 2, 1, "crash"))
    spool.returned.append(Held(1, 1, [3]))
    spool.close(9, 1, 0.0)
    spool.renew()

    assert [held.seqs for held in spool.inventory()] == [[1], [2]]
    assert spool.returned == [], "what was handed back is not held: the inventory says so"
    results = spool.close(9, 2, 1.0)
    assert (results.number, len(results.done), len(results.failed)) == (1, 1, 1)
