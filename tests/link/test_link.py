"""Both ends of a reliable link: what a sender keeps and repeats, what a receiver drops and acknowledges."""

import math

import pytest

from taskmesh.link.link import ACK_DELAY, DOUBLINGS, SLOWEST, ReceiveWindow, SendWindow


def window(*sizes: int, at: float = 0.0) -> SendWindow[str]:
    """Messages "1", "2" ... of these sizes, not sent yet."""
    found: SendWindow[str] = SendWindow()
    for size in sizes:
        found.append(str(found.next), size, at)
    return found


class TestSending:
    def test_messages_are_sent_in_order_and_once(self):
        found = window(1, 1)
        found.append("3", 1, 0.0)

        assert found.send() == ["1", "2", "3"]
        assert found.send() == []

    def test_no_more_than_the_limit_is_in_flight_but_one_message_always(self):
        found = window(100, 100, 100)

        assert found.send(100) == ["1"]
        assert found.send(101) == ["2"]
        assert (found.size, found.in_flight, found.sent) == (300, 200, 2)

    def test_what_is_sent_as_it_comes_is_not_sent_again(self):
        found = window()
        found.append("1", 10, 0.0, sent=True)

        assert found.send() == []
        assert found.in_flight == 10

    def test_acknowledged_messages_make_room(self):
        found = window(100, 100, 100)
        found.send(200)

        assert found.acknowledge(1, 1.0) == ["1"]
        assert (found.first, found.in_flight, found.size) == (2, 100, 200)
        assert found.send(200) == ["3"]

    def test_an_acknowledgement_is_cumulative_and_may_come_twice(self):
        found = window(1, 1, 1)
        found.send()

        assert found.acknowledge(2, 1.0) == ["1", "2"]
        assert found.acknowledge(2, 2.0) == []
        assert found.acknowledge(99, 2.0) == ["3"]
        assert (found.first, found.next, found.in_flight) == (4, 4, 0)

    def test_one_of_an_earlier_link_counts_before_anything_is_sent_over_this(self):
        found = window(1, 1)
        found.send()
        found.rewind(1, 1.0)

        assert found.acknowledge(1, 1.0) == ["1"]
        assert found.send() == ["2"]
        assert found.in_flight == 1

    def test_rewound_messages_are_sent_again_from_a_number_on(self):
        found = window(10, 10, 10)
        found.send()
        found.rewind(2, 1.0)

        assert found.in_flight == 10
        assert found.send() == ["2", "3"]

    def test_a_restart_forgets_all(self):
        found = window(10, 10)
        found.send(10)
        found.restart(7)

        assert (found.first, found.next, found.sent, found.size, found.in_flight) == (7, 7, 6, 0, 0)
        assert found.deadline(1.0) == math.inf


class TestRepeating:
    def test_nothing_in_flight_is_never_lost(self):
        assert window().deadline(2.0) == math.inf
        assert window(1).deadline(2.0) == math.inf

    def test_bytes_in_flight_are_waited_for(self):
        found = window(SLOWEST, SLOWEST, at=5.0)
        found.send()

        assert found.deadline(2.0) == pytest.approx(5.0 + 2.0 + 2.0)

    def test_twice_as_long_after_each_repetition_up_to_a_bound(self):
        found = window(SLOWEST)
        found.send()
        waits = []
        for _ in range(DOUBLINGS + 2):
            waits.append(found.deadline(0.0) - found.moved)
            found.repeat(found.deadline(0.0))
            assert found.send() == ["1"]

        assert waits == pytest.approx([min(1 << index, 1 << DOUBLINGS) for index in range(DOUBLINGS + 2)])

    def test_progress_begins_it_anew(self):
        found = window(SLOWEST, SLOWEST)
        found.send()
        found.repeat(10.0)
        found.send()
        found.acknowledge(1, 20.0)

        assert found.repeats == 0
        assert found.deadline(0.0) == pytest.approx(21.0)

    def test_without_anything_in_flight_no_repetition_is_counted(self):
        found = window()
        found.repeat(1.0)

        assert found.repeats == 0


class TestReceiving:
    def test_a_duplicate_is_dropped(self):
        found = ReceiveWindow()

        assert [found.take(number) for number in (1, 2, 2, 1)] == [True, True, False, False]
        assert found.to == 2

    def test_a_gap_is_acknowledged_when_it_is_filled(self):
        found = ReceiveWindow()

        assert found.take(2)
        assert not found.take(2)
        assert found.to == 0
        assert found.take(1)
        assert (found.to, found.early) == (2, set())

    def test_so_many_are_taken_in_beyond_a_gap(self):
        found = ReceiveWindow(most_early=1)

        assert [found.take(number) for number in (2, 3, 1, 3)] == [True, False, True, True]

    def test_an_acknowledgement_waits_for_something_to_go_with(self):
        found = ReceiveWindow(credit=800)
        found.take(1)
        found.owe(99, 5.0, at_once=False)
        found.owe(0, 5.001, at_once=False)

        assert found.due == 5.0 + ACK_DELAY
        assert found.acknowledged() == 1
        assert found.due == math.inf

    def test_it_is_due_at_once_when_an_eighth_of_the_credit_is_used(self):
        found = ReceiveWindow(credit=800)
        found.owe(50, 5.0, at_once=False)
        found.owe(50, 5.001, at_once=False)

        assert found.due == 5.001

    def test_none_is_owed_to_a_sender_that_asks_for_none(self):
        found = ReceiveWindow()
        found.take(1)
        found.owe(1 << 30, 5.0, at_once=True)

        assert found.due == math.inf
        assert found.acknowledged() == 0

    def test_a_sender_that_counts_anew_is_owed_nothing(self):
        found = ReceiveWindow(credit=8)
        found.take(1)
        found.take(3)
        found.owe(1, 5.0, at_once=True)
        found.restart()

        assert (found.to, found.early, found.due) == (0, set(), math.inf)
