"""The clauses that the sockets are held to, in our own words, one for each requirement keyword.

Families: PIPE 30/PIPELINE, SG 49/SCATTERGATHER, PS 29/PUBSUB, TBL the table of socket types, PAIRS what may
    be connected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Clause:
    """One requirement: its name here, the keyword of the text, and what it asks for."""

    id: str
    keyword: str
    text: str

    @property
    def family(self) -> str:
        return self.id.partition("-")[0]

    @property
    def test_prefix(self) -> str:
        """How the names of its tests begin."""
        return f"test_{self.id.replace('-', '_')}_"


FAMILIES = {
    "PIPE": "30/PIPELINE: Push and Pull",
    "SG": "49/SCATTERGATHER: Scatter and Gather",
    "PS": "29/PUBSUB: Pub, Sub, XPub, XSub",
    "TBL": "The table of socket types",
    "PAIRS": "Which sockets may be connected",
}

PIPELINE = """
PIPE-01 SHOULD Whoever implements PUSH and PULL keeps to the document.
PIPE-02 MAY A PUSH talks to as many PULLs as there are.
PIPE-03 SHALL A PUSH sends and never receives.
PIPE-04 SHALL NOT A PUSH leaves messages as they are: none is filtered out, none is changed.
PIPE-05 SHALL A PUSH keeps a queue of its own for each PULL.
PIPE-06 SHALL That queue exists from connect() on.
PIPE-07 SHALL The queue of a connecting PUSH stays while the connection is down.
PIPE-08 SHALL A bound PUSH makes the queue when a PULL arrives.
PIPE-09 SHALL A bound PUSH destroys the queue when that PULL leaves.
PIPE-10 SHALL What was in the destroyed queue is thrown away.
PIPE-11 SHOULD The length of a PUSH's queues can be limited at run time.
PIPE-12 SHALL A PULL counts as available only while its queue has room.
PIPE-13 SHALL A PUSH goes round the available PULLs in turn.
PIPE-14 SHALL With no PULL available a send waits, or fails with a fitting error.
PIPE-15 SHALL NOT With no PULL available nothing more is accepted.
PIPE-16 SHALL NOT A message that cannot be queued is not thrown away.
PIPE-17 MAY A PULL talks to as many PUSHes as there are.
PIPE-18 SHALL A PULL receives and never sends.
PIPE-19 SHALL NOT A PULL leaves messages as they are: none is filtered out, none is changed.
PIPE-20 SHALL A PULL keeps a queue of its own for each PUSH.
PIPE-21 SHALL That queue exists from connect() on.
PIPE-22 SHALL The queue of a connecting PULL stays while the connection is down.
PIPE-23 SHALL A bound PULL makes the queue when a PUSH arrives.
PIPE-24 SHALL A bound PULL destroys the queue when that PUSH leaves.
PIPE-25 SHALL What was in the destroyed queue is thrown away.
PIPE-26 SHOULD The length of a PULL's queues can be limited at run time.
PIPE-27 SHALL A PULL takes from its queues fairly, each in turn.
PIPE-28 SHALL A PULL hands what it takes to the application.
"""

SCATTER_GATHER = """
SG-01 SHOULD Whoever implements SCATTER and GATHER keeps to the document.
SG-02 MUST One indivisible call sends or receives a whole message.
SG-03 MUST NOT Messages of several parts have no place in this family.
SG-04 MAY A SCATTER talks to as many GATHERs as there are.
SG-05 SHALL A SCATTER sends and never receives.
SG-06 SHALL NOT A SCATTER leaves messages as they are: none is filtered out, none is changed.
SG-07 SHALL A SCATTER keeps a queue of its own for each GATHER.
SG-08 SHALL That queue exists from connect() on.
SG-09 SHALL The queue of a connecting SCATTER stays while the connection is down.
SG-10 SHALL A bound SCATTER makes the queue when a GATHER arrives.
SG-11 SHALL A bound SCATTER destroys the queue when that GATHER leaves.
SG-12 SHALL What was in the destroyed queue is thrown away.
SG-13 SHOULD The length of a SCATTER's queues can be limited at run time.
SG-14 MUST A SCATTER can be used by several threads without harm.
SG-15 MUST Several threads may send through one SCATTER.
SG-16 SHALL A GATHER counts as available only while its queue has room.
SG-17 SHALL A SCATTER goes round the available GATHERs in turn.
SG-18 SHALL With no GATHER available a send waits, or fails with a fitting error.
SG-19 SHALL NOT With no GATHER available nothing more is accepted.
SG-20 SHALL NOT A message that cannot be queued is not thrown away.
SG-21 MUST NOT A SCATTER sends no message of several parts.
SG-22 MAY A GATHER talks to as many SCATTERs as there are.
SG-23 SHALL A GATHER receives and never sends.
SG-24 SHALL NOT A GATHER leaves messages as they are: none is filtered out, none is changed.
SG-25 SHALL A GATHER keeps a queue of its own for each SCATTER.
SG-26 SHALL That queue exists from connect() on.
SG-27 SHALL The queue of a connecting GATHER stays while the connection is down.
SG-28 SHALL A bound GATHER makes the queue when a SCATTER arrives.
SG-29 SHALL A bound GATHER destroys the queue when that SCATTER leaves.
SG-30 SHALL What was in the destroyed queue is thrown away.
SG-31 SHOULD The length of a GATHER's queues can be limited at run time.
SG-32 MUST A GATHER can be used by several threads without harm.
SG-33 MUST Several threads may receive through one GATHER.
SG-34 SHALL A GATHER takes from its queues fairly, each in turn.
SG-35 SHALL A GATHER hands what it takes to the application.
SG-36 MUST A GATHER throws away every part of a message that has several.
SG-37 MAY A GATHER may cut off whoever sends such messages.
"""

PUBLISH_SUBSCRIBE = """
PS-01 SHOULD Whoever implements PUB, SUB, XPUB and XSUB keeps to the document.
PS-02 MAY A PUB talks to as many SUBs and XSUBs as there are.
PS-03 SHALL A PUB sends and never receives.
PS-04 SHALL A PUB keeps one outgoing queue for each subscriber.
PS-05 SHALL That queue exists from connect() on.
PS-06 SHALL The queue of a connecting PUB stays whether the connection is up or down.
PS-07 SHALL A bound PUB makes the queue when a subscriber arrives.
PS-08 SHALL A bound PUB destroys the queue when that subscriber leaves.
PS-09 SHALL What was in the destroyed queue is thrown away.
PS-10 SHOULD The length of a PUB's queues can be limited at run time.
PS-11 SHALL What subscribers send to a PUB is ignored without a sign.
PS-12 SHALL NOT A PUB does not change messages.
PS-13 MAY Where the transport makes it so, a PUB sends all messages to all subscribers.
PS-14 MAY Where the transport makes it so, a PUB sends only to subscribers with a fitting subscription.
PS-15 SHALL A subscription fits when the first frame begins with its bytes.
PS-16 SHALL For a subscriber whose queue is full a PUB drops the message without a sign.
PS-17 SHALL NOT A send of a PUB never waits.
PS-18 SHALL A PUB takes subscriptions and cancellations from its subscribers.
PS-19 SHALL NOT A PUB does not show these to the application.
PS-20 MAY An XPUB talks to as many SUBs and XSUBs as there are.
PS-21 MAY An XPUB both sends and receives.
PS-22 SHALL An XPUB keeps for each subscriber two queues, independent of each other.
PS-23 SHALL The two queues exist from connect() on.
PS-24 SHALL The two queues of a connecting XPUB stay whether the connection is up or down.
PS-25 SHALL A bound XPUB makes the two queues when a subscriber arrives.
PS-26 SHALL A bound XPUB destroys the two queues when that subscriber leaves.
PS-27 SHALL What was in the destroyed queues is thrown away.
PS-28 SHOULD The length of an XPUB's queues can be limited at run time, in each direction.
PS-29 SHALL NOT An XPUB does not change messages that it sends.
PS-30 MAY Where the transport makes it so, an XPUB sends all messages to all subscribers.
PS-31 MAY Where the transport makes it so, an XPUB sends only to subscribers with a fitting subscription.
PS-32 SHALL A subscription fits when the first frame begins with its bytes.
PS-33 SHALL For a subscriber whose queue is full an XPUB drops the message without a sign.
PS-34 SHALL NOT A send of an XPUB never waits.
PS-35 SHALL An XPUB takes from its subscribers fairly, each in turn.
PS-36 SHALL An XPUB hands what subscribers send to the application.
PS-37 SHALL An XPUB takes subscriptions and cancellations from its subscribers.
PS-38 SHALL An XPUB shows these to the application.
PS-39 MAY Equal subscriptions may be shown as one, as configured.
PS-40 SHALL When a subscriber vanishes, an XPUB shows the cancellation that it did not send.
PS-41 MAY A SUB talks to as many PUBs and XPUBs as there are.
PS-42 SHALL A SUB receives and never sends.
PS-43 SHALL A SUB keeps one incoming queue for each publisher.
PS-44 SHALL That queue exists from connect() on.
PS-45 SHALL The queue of a connecting SUB stays whether the connection is up or down.
PS-46 SHALL A bound SUB makes the queue when a publisher arrives.
PS-47 SHALL A bound SUB destroys the queue when that publisher leaves.
PS-48 SHALL What was in the destroyed queue is thrown away.
PS-49 SHOULD The length of a SUB's queues can be limited at run time.
PS-50 SHALL When the queue of a publisher is full, a SUB drops its messages without a sign.
PS-51 SHALL A SUB takes from its publishers fairly, each in turn.
PS-52 SHALL NOT A SUB does not change messages.
PS-53 MAY Where the transport makes it so, a SUB filters by its subscriptions, as prefixes.
PS-54 SHALL A SUB hands what it takes to the application.
PS-55 MAY A SUB may send its subscriptions and cancellations to the publishers.
PS-56 MAY An XSUB talks to as many PUBs and XPUBs as there are.
PS-57 MAY An XSUB both sends and receives.
PS-58 SHALL An XSUB keeps for each publisher two queues, independent of each other.
PS-59 SHALL The two queues exist from connect() on.
PS-60 SHALL The two queues of a connecting XSUB stay whether the connection is up or down.
PS-61 SHALL A bound XSUB makes the two queues when a publisher arrives.
PS-62 SHALL A bound XSUB destroys the two queues when that publisher leaves.
PS-63 SHALL What was in the destroyed queues is thrown away.
PS-64 SHOULD The length of an XSUB's queues can be limited at run time, in each direction.
PS-65 SHALL NOT An XSUB does not change messages that it receives.
PS-66 SHALL When the incoming queue of a publisher is full, an XSUB drops its messages without a sign.
PS-67 SHALL An XSUB takes from its publishers fairly, each in turn.
PS-68 MAY Where the transport makes it so, an XSUB filters by its subscriptions, as prefixes.
PS-69 SHALL An XSUB hands what it takes to the application.
PS-70 SHALL NOT An XSUB does not change messages that it sends.
PS-71 SHALL An XSUB sends each message to every publisher.
PS-72 SHALL For a publisher whose queue is full an XSUB drops the message without a sign.
PS-73 SHALL NOT A send of an XSUB never waits.
PS-74 SHALL An XSUB takes subscriptions and cancellations from the application.
PS-75 SHALL An XSUB sends them to its publishers.
PS-76 SHOULD An XSUB that closes a connection cancels all its subscriptions there.
"""

TABLE = """
TBL-REQ - Sends to its peers in turn behind an empty part, then hears that one; waits when none is free.
TBL-REP - Receives fairly, keeps the parts up to the empty one, answers behind them; drops if the peer left.
TBL-DEALER - Receives fairly and sends to its peers in turn, changing nothing; waits when all are full.
TBL-ROUTER - Receives fairly, identity first; sends to the one in the first part; drops if unknown or full.
TBL-PUB - Sends to all who subscribed; drops for who is full, and when nobody is there.
TBL-SUB - Receives fairly what it subscribed to; what comes beyond a full queue is dropped.
TBL-PUSH - Sends to its peers in turn; waits when all are full.
TBL-PULL - Receives fairly.
TBL-PAIR - Talks to one peer alone; waits when it is full.
PAIRS - Only the listed pairs can be connected, whichever side binds.
"""

NOTES = """
D1 The queue of a connecting sender outlives a broken link, but what was already given to the kernel (and up
    to 8 KiB in libzmq's encoder) is lost. A queue is no promise of delivery: that takes a ledger.
D2 A high-water mark counts messages in libzmq's own queues. Over tcp and ipc the kernel's buffers come on
    top: for small messages thousands, so it does not bound what is in flight.
D3 With the option `immediate` a connecting socket has no queue before the handshake is done (tcp, ipc);
    inproc ignores the option.
D4 A receiver keeps and delivers what it had read before its peer left. The text wants that thrown away;
    keeping it is better for results, so we keep it.
D5 A publisher has no subscriptions of a subscriber before they arrive, and so queues nothing for it till
    then: the slow joiner. State has to be sent again to who comes, events need numbers.
D6 When a peer leaves between the parts of a message, the message is lost with that peer's queue, mostly
    without a sign. Where libzmq gives one, `send_parts` sends the whole message anew. Never does a part
    arrive alone.
D7 Over tcp and ipc a full SUB or XSUB stops reading instead of dropping; the publisher's queue fills and
    the publisher drops. Over inproc there is one common queue, and the publisher drops.
D14 A bound socket notices new and lost peers only when its owner next calls it; poll it continuously.
D15 A publisher learns of free room only when it handles commands, about once in a millisecond. With a small
    limit it drops for subscribers that have read everything; keep it at 1000 or more.
D17 An XPUB takes all that a subscriber has sent as soon as it looks, so a talkative one is heard to the end
    first. Subscriptions are few and short: it does not matter for control channels.
D18 An XPUB that connects keeps the subscriptions of a lost connection (its queue lives on as well) and
    shows no cancellation. Bind it to see subscribers leave.
D19 When an XSUB that connects loses its connection, what it had not sent yet is thrown away; it sends its
    subscriptions again, and keeps what it had received.
D20 A part of what an XSUB sends is taken for a subscription when it begins with byte 1, for a cancellation
    when it begins with byte 0, in a message of several parts too. Let user messages begin otherwise.
"""

TASK_LEVEL = """
PIPE-01 hub/machine/test_collector.py::test_a_success_is_delivered_once
PIPE-02 hub/machine/test_ventilator.py::test_pools_are_served_in_turn
PIPE-04 hub/machine/test_collector.py::test_arguments_and_results_pass_as_they_came
PIPE-05 hub/machine/test_ventilator.py::test_a_full_pool_gives_no_other_a_second_turn
PIPE-06 hub/machine/test_ventilator.py::test_no_work_before_the_pool_has_dialled_its_lane
PIPE-07 hub/machine/test_pools.py::test_what_the_pool_still_holds_moves_over_and_is_not_sent_again
PIPE-08 hub/machine/test_pools.py::test_it_opens_a_lane_and_is_answered
PIPE-09 hub/machine/test_pools.py::test_a_pool_that_says_goodbye_is_gone_at_once
PIPE-10 hub/machine/test_pools.py::test_after_the_lease_its_work_goes_to_others
PIPE-11 hub/machine/test_ventilator.py::test_instant_tasks_fill_the_window
PIPE-12 hub/machine/test_ventilator.py::test_a_long_task_is_never_sent_ahead
PIPE-13 hub/machine/test_ventilator.py::test_a_full_pool_gives_no_other_a_second_turn
PIPE-14 hub/machine/test_submission.py::test_beyond_the_clients_tasks_it_is_told_to_come_again
PIPE-15 hub/machine/test_ventilator.py::test_a_pool_that_takes_no_work_gets_none
PIPE-16 hub/machine/test_submission.py::test_beyond_the_clients_tasks_it_is_told_to_come_again
PIPE-17 hub/machine/test_collector.py::test_the_first_success_of_any_attempt_wins
PIPE-19 hub/machine/test_collector.py::test_arguments_and_results_pass_as_they_came
PIPE-20 hub/machine/test_lanes.py::test_reports_count_once_in_any_order
PIPE-21 pool/machine/test_spool.py::test_what_gathered_without_a_session_goes_in_several_reports
PIPE-22 pool/machine/test_pool.py::test_everything_held_is_listed_and_reported_again
PIPE-23 hub/machine/test_pools.py::test_repeated_after_its_session_has_ended_it_opens_another
PIPE-24 hub/machine/test_collector.py::test_the_first_success_of_any_attempt_wins
PIPE-25 hub/machine/test_collector.py::test_so_does_one_that_comes_while_a_retry_waits
PIPE-26 core/test_results_not_taken.py::test_no_more_is_run_until_the_client_has_taken_its_results
PIPE-27 hub/machine/test_collector.py::test_reports_out_of_order_all_count
PIPE-28 hub/machine/test_collector.py::test_everybody_who_waits_gets_the_outcome
"""
"""The test of machines that holds ventilator and collector to a clause; a lane is a PUSH, and the collector
a PULL, so the sockets alone keep PIPE-03 and PIPE-18."""

KEYWORDS = ("SHALL NOT", "MUST NOT", "SHALL", "MUST", "SHOULD", "MAY", "-")


def lines(table: str) -> list[str]:
    """The entries of a table; an indented line goes on with the one before."""
    return table.replace("\n    ", " ").strip().split("\n")


def clauses(table: str) -> Iterator[Clause]:
    for line in lines(table):
        name, rest = line.split(" ", 1)
        keyword = next(keyword for keyword in KEYWORDS if rest.startswith(keyword))
        yield Clause(name, keyword, rest.removeprefix(keyword).strip())


CLAUSES = [
    clause for table in (PIPELINE, SCATTER_GATHER, PUBLISH_SUBSCRIBE, TABLE) for clause in clauses(table)
]

SHOWN_IN_CORE = dict(line.split(" ", 1) for line in lines(TASK_LEVEL))
DEVIATIONS = dict(line.split(" ", 1) for line in lines(NOTES))
"""Places where libzmq 4.3.5 differs from the texts, or holds to them with a consequence worth knowing."""
