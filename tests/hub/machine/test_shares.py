"""Everything that a client can make many of counts among its bytes: specs, names, edges, values in sinks."""

import itertools

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.books.backlog import LINE
from taskmesh.hub.machine.books.ledger import EDGE
from taskmesh.hub.machine.books.sinks import MOST_LISTED
from taskmesh.hub.machine.books.spec_entry import SPEC
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import SINK_VALUE, LimitRule, Run, Spec
from tests.core.rig import HubRig, number_of, spec

MALLORY, ALICE = 1, 2
MOST = 100 * LINE
USER = LimitRule("user", 1, keyed=True)


@pytest.fixture
def rig() -> HubRig:
    """A hub that has no pool, so that everything waits."""
    rig = HubRig(first=True, client_max_bytes=MOST)
    rig.client(MALLORY)
    rig.client(ALICE)
    return rig


def is_taken(rig: HubRig, client: int, one: Spec, **options: object) -> bool:
    """Submit one task; return False if the hub is too busy for it, whose number may be used again then."""
    seq = rig._next[client] + 1
    number = rig._submits[client] + 1
    run = Run(number_of(one), options.pop("group", 0), [seq], [b"x"], **options)
    rig.tell(ev.FromClient(client, m.Submit(number, [(number_of(one), one)], [run])))
    if isinstance(rig.told[client][-1], m.Busy):
        return False
    rig._next[client], rig._submits[client] = seq, number
    return True


def finish(rig: HubRig, session: int) -> None:
    rig.report(session, done=(rig.held[session][0],))


def test_functions_count_for_whom_has_brought_them_while_a_task_of_theirs_is_here(rig):
    functions = [Spec(bytes([n]) * (MOST // 4), "f") for n in range(4)]
    taken = [is_taken(rig, MALLORY, one) for one in functions]
    assert taken == [True, True, True, False]
    assert is_taken(rig, ALICE, functions[0])
    ledger = rig.hub.state.ledger
    assert ledger.account(ALICE).size < MOST // 4, "it is there already"

    session = rig.join(slots=1)
    while rig.held[session]:
        finish(rig, session)
    assert ledger.size == ledger.account(MALLORY).size == 0
    assert ledger.resting.specs.keys() == {number_of(one) for one in functions}
    assert is_taken(rig, ALICE, functions[0])
    assert ledger.account(ALICE).size > MOST // 4, "now she has brought it"


def distinct(what: str, n: int) -> tuple[Spec, dict[str, object]]:
    """Return a spec, and options of a run, that have a name of their own."""
    match what:
        case "queue":
            return spec(queue=f"q{n}"), {}
        case "tag":
            return spec(tags=("t" * 1000,) * 10, name=f"f{n}"), {}
        case "group":
            return spec(), {"group": n}
        case "part":
            return spec("limited", limits=(USER,)), {"part": f"p{n}"}
        case _:
            return spec(), {"key": f"{n}-" + "k" * 1000}


@pytest.mark.parametrize("what", ["queue", "tag", "group", "part", "key"])
def test_a_task_with_a_name_of_its_own_takes_more_of_the_share(rig, what):
    for n in itertools.count():
        one, options = distinct(what, n)
        if not is_taken(rig, MALLORY, one, **options):
            break
        assert n < MOST // 1000
    assert rig.hub.state.ledger.account(MALLORY).size <= MOST
    assert is_taken(rig, ALICE, spec("of alice")), "others have room"
    rig.tell(ev.FromClient(MALLORY, m.ClientBye(cancel=True)))
    rig.after(1.0)

    assert MALLORY not in rig.hub.state.ledger.accounts
    assert rig.hub.state.ledger.size == rig.hub.state.ledger.account(ALICE).size


def test_tasks_without_names_of_their_own_take_what_their_calls_take(rig):
    rig.submit(MALLORY, 20_000, size=8)
    entry = rig.hub.state.specs[number_of(spec())]

    assert rig.hub.state.ledger.account(MALLORY).size == 20_000 * 8 + LINE + entry.size
    assert entry.size < SPEC + 100


def test_edges_count(rig):
    seqs = rig.submit(MALLORY, 200)
    taken = 0
    while True:
        before = rig.hub.state.ledger.account(MALLORY).size
        if not is_taken(rig, MALLORY, spec(), needs=[seqs]):
            break
        assert rig.hub.state.ledger.account(MALLORY).size - before > 200 * EDGE
        taken += 1
    assert 2 <= taken < 5


def test_values_in_sinks_count_and_one_at_a_time_may_be_larger_than_its_share():
    rig = HubRig(first=True, client_max_bytes=MOST, max_bytes=2 * MOST, result_bytes=MOST // 4)
    rig.client(MALLORY)
    rig.client(ALICE)
    sinks = rig.hub.state.sinks
    for n in range(10):
        one = spec(f"f{n}", kind=SINK_VALUE, sink=f"s{n}")
        run = Run(number_of(one), 0, [n + 1], [b"x" * (MOST // 3)])
        rig.tell(ev.FromClient(MALLORY, m.Submit(n + 1, [(number_of(one), one)], [run])))
    assert isinstance(rig.told[MALLORY][-1], m.Busy)
    assert rig.hub.state.ledger.account(MALLORY).size <= MOST
    assert [sink.name for sink in sinks.sinks.values()] == ["s0"], "others wait until it has been taken"

    rig.tell(ev.FromClient(ALICE, m.SinkReport("s0", 1, 1, 0, MOST)))
    rig.tell(ev.FromClient(ALICE, m.SinkReport("s0", 1, 2, 1, MOST, acked=[(MALLORY, 1)])))
    assert sinks.filled == {"s1"}
    assert rig.hub.state.ledger.size == rig.hub.state.ledger.account(MALLORY).size


def test_the_sweep_looks_at_no_spec_and_no_sink_that_nothing_can_happen_to(rig):
    for n in range(40):
        assert is_taken(rig, MALLORY, spec(f"f{n}"))
    for n in range(20):
        assert is_taken(rig, MALLORY, spec(f"v{n}", kind=SINK_VALUE, sink=f"s{n}"))
    rig.tell(ev.FromClient(ALICE, m.SinkReport("s3", 1, 1, 0, 1)))

    assert len(rig.hub.state.specs) == 60
    assert len(rig.hub.state.ledger.resting.specs) == 20, "specs without a task, and no other"
    assert [sink.name for sink, _ in rig.hub.state.sinks._consumers()] == ["s3"]


def test_the_status_lists_so_many_sinks(rig):
    rig = HubRig(first=True)
    rig.client(MALLORY)
    specs = [spec(f"v{n}", kind=SINK_VALUE, sink=f"s{n}") for n in range(MOST_LISTED + 1)]
    runs = [Run(number_of(one), 0, [n + 1], [b"x"]) for n, one in enumerate(specs)]
    rig.tell(ev.FromClient(MALLORY, m.Submit(1, [(number_of(one), one) for one in specs], runs)))

    assert len(rig.hub.state.sinks.sinks) == MOST_LISTED + 1
    assert len(rig.hub.snapshot()["sinks"]) == MOST_LISTED
