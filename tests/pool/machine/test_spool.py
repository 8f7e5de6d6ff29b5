"""Reports are kept until the hub has them."""

from taskmesh.messages.runs import DoneRun, Failed, Held
from taskmesh.pool.machine.spool import FEW, MAX_REPORT, Spool, portion


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
    spool.done.append(DoneRun(1, 1, 1, "p/0", [1], [bytes(1_000_000)], 0.1))
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


def test_what_gathered_without_a_session_goes_in_several_reports():
    spool = Spool()
    large = bytes(1 << 16)  # larger ones travel in frames of their own
    spool.done += [DoneRun(1, 1, 1, "p/0", [seq], [large], 0.1) for seq in range(3 * FEW)]
    spool.failed += [Failed(1, 1000 + seq, 1, "exception", traceback="t" * 8000) for seq in range(3000)]
    reports = []
    while spool.has_news:
        reports.append(spool.close(9, 1, 0.0))

    assert [seq for results in reports for run in results.done for seq in run.seqs] == list(range(3 * FEW))
    assert sum(len(results.failed) for results in reports) == 3000
    for results in reports:
        size = sum(len(data) for run in results.done for data in run.payloads)
        assert size <= MAX_REPORT + len(large)
        assert sum(len(failure.traceback) for failure in results.failed) <= MAX_REPORT + 8000
    assert [results.number for results in reports] == list(range(1, len(reports) + 1))


def test_a_few_go_together_however_large():
    items = [MAX_REPORT] * FEW

    assert portion(items, int) == (items, [])


def test_of_many_the_one_that_exceeds_a_report_is_its_last():
    half, more = [MAX_REPORT // 2] * (FEW + 1), [MAX_REPORT + 1] * (FEW + 1)

    assert portion(half, int) == (half[:3], half[3:]), "two of them fill it to the byte"
    assert portion(more, int) == (more[:1], more[1:])
