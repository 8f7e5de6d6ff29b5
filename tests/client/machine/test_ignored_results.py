"""A client machine whose hub lacks results that the client ignores: it brings the calls instead."""

import pytest

from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run, Value
from tests.core.client_rig import Client
from tests.core.rig import number_of, spec

SILENT = spec("silent", ignore_result=True)


@pytest.fixture
def client() -> Client:
    client = Client()
    client.welcome()
    client.calls[1] = SILENT
    return client


def submit(client: Client, *, needs: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> None:
    run = Run(number_of(spec()), 0, [7], [b"call"])
    run.needs, run.after = ([list(needs)] if needs else []), ([list(after)] if after else [])
    client.tell(ev.Queued([(number_of(spec()), spec())], [run]))


def newest(client: Client) -> m.Submit:
    return client.of(m.Submit)[-1]


def test_the_call_goes_before_what_needs_it_once(client: Client):
    client.values[1] = Value(1, name="silent", attempt=1)
    submit(client, needs=(1,))
    assert newest(client).values == []
    client.hear(m.NeedValues(1, [1]))
    count = len(client.of(m.Submit))
    client.hear(m.NeedValues(1, [1]))

    assert [(run.seqs, run.rerun) for run in newest(client).runs] == [([1], 1), ([7], 0)]
    assert number_of(SILENT) in dict(newest(client).specs)
    assert len(client.of(m.Submit)) == count


def test_the_success_is_enough_for_one_that_waits_for_the_end(client: Client):
    client.values[1] = Value(1, name="silent", attempt=1)
    submit(client, after=(1,))

    assert newest(client).values == [client.values[1]]


def test_a_call_that_is_too_large_for_the_next_hub_is_a_failure():
    client = Client(max_payload=1000)
    client.calls[1] = SILENT
    client.payload = b"x" * 500
    client.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, max_payload=100))
    submit(client, needs=(1,))
    client.hear(m.NeedValues(1, [1]))

    [value] = newest(client).values
    assert (value.seq, value.failed.kind) == (1, "result")
    assert [run.seqs for run in newest(client).runs] == [[7]]


def test_one_of_which_nothing_is_known_is_a_failure(client: Client):
    submit(client, needs=(1, 2))
    client.hear(m.NeedValues(1, [1, 2]))

    assert [run.seqs for run in newest(client).runs] == [[1], [7]]
    assert [(value.seq, value.failed.kind) for value in newest(client).values] == [(2, "lost")]
