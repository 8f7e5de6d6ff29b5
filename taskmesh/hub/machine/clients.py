"""Clients of the hub: how their sessions begin and end, and what is kept for those that are away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from taskmesh.core.actions import SendClient
from taskmesh.hub.machine import cancellations, owners, schedules, sink_values
from taskmesh.hub.machine.books.client_session import ClientSession, placed
from taskmesh.hub.machine.books.clients import Extent
from taskmesh.hub.machine.books.lanes import LEAVING
from taskmesh.hub.machine.settings import REFUSE, difference
from taskmesh.hub.machine.state import HubState
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import JournalChunk
from taskmesh.messages.runs import DoneRun, Failed

MOST_FORGOTTEN = 10_000
"""Clients of which it is remembered that they were forgotten, and have been told so."""
IDLE_TTL = 60.0
"""Seconds that a client is remembered that says nothing and has nothing here."""
MAX_WINDOW = 64 << 20
"""Bytes that one client may have under way: more is not faster."""
MOST_ROUTES = 100
"""Pairs of queue and tags of which a client is told how many slots serve them."""
MOST_WINDOWS = 128
"""So many clients share what may be under way; with more of them none has less."""


PORTION = 2000
"""Outcomes of clients that have gone which are written in one step, a run more at most."""


# --- coming and going -------------------------------------------------------------------------------------


def on_hello(hub: HubState, hello: m.ClientHello, now: float, user: str = "") -> None:
    """A client opens its session or comes back: it gets a welcome and what it has not acknowledged."""
    config = hub.config
    if hello.protocol != m.PROTOCOL:
        reason = f"the hub speaks protocol {m.PROTOCOL}, not {hello.protocol}: install the same taskmesh"
        hub.out.append(SendClient(hello.client, m.ClientRefused(reason)))
        return
    odd = difference(config.versions, hello)
    if odd and config.policy == REFUSE:
        hub.out.append(SendClient(hello.client, m.ClientRefused(odd)))
        hub.log("client.refused", {"client": hello.name, "reason": odd})
        return
    session = hub.clients.get(hello.client)
    full = _full(hub) if session is None else ""
    if full:
        hub.out.append(SendClient(hello.client, m.ClientRefused(full)))
        return
    if session is None:
        if _is_ending(hub, hello.client):
            return  # it asks again; what it submitted now would be cancelled with the rest
        if _may_be_dead(hub, hello):
            _welcome(hub, hello)
            return
        session = _open(hub, hello.client, user, hello.name, now)
        account = hub.ledger.account(hello.client)
        account.forget_finished()
        account.finished.add_all(sorted(hub.sinks.ends.get(hello.client, ())))
    session.name, session.python, session.credit = hello.name, hello.python, hello.credit
    session.slot, session.parent = placed(hello.slot)
    session.is_operator = hello.operator
    owners.may_name(hub, session)
    if odd and session.warning != odd:
        hub.log("client.versions", {"client": hello.name, "warning": odd})
    session.warning = odd
    session.submitted = max(session.submitted, hello.first - 1)
    session.present, session.linked, session.lost = True, True, False
    session.heard = now
    _welcome(hub, hello)
    hub.out += session.again(now)
    hub.due.news.add(hello.client)


def programs(hub: HubState) -> list[ClientSession]:
    """Return the sessions of programs: all but those of commands, unless these have tasks."""
    return [
        session
        for session in hub.clients.values()
        if not session.is_operator or hub.ledger.account(session.client).tasks
    ]


def restore(hub: HubState, chunk: JournalChunk, now: float) -> None:
    """Open the session of a client whose tasks a journal has; it may come back."""
    if hub.house.is_own(chunk.client):
        hub.ledger.account(chunk.client).owner = chunk.user
        return
    if chunk.client in hub.clients:
        return
    session = _open(hub, chunk.client, chunk.user, chunk.name, now)
    session.name, session.credit = chunk.name, 1
    session.present = session.linked = False


def _open(hub: HubState, client: int, user: str, name: str, now: float) -> ClientSession:
    session = hub.clients[client] = ClientSession(client, hub.config.epoch, now, user)
    hub.known_clients.opened += 1
    session.number = hub.known_clients.opened
    account = hub.ledger.account(client)
    account.name, account.user, account.owner = name, user, user
    return session


def _may_be_dead(hub: HubState, hello: m.ClientHello) -> bool:
    """Tell that a client which this hub has forgotten is to say Hello again, as one that lives does.

    What a dead one sent last may come after the word of its death: its tasks would run once more.
    """
    if hello.epoch != hub.config.epoch or hub.known_clients.forgotten.pop(hello.client, False):
        return False
    hub.known_clients.forgotten[hello.client] = True
    if len(hub.known_clients.forgotten) > MOST_FORGOTTEN:
        del hub.known_clients.forgotten[next(iter(hub.known_clients.forgotten))]
    return True


def _welcome(hub: HubState, hello: m.ClientHello) -> None:
    config = hub.config
    session = hub.clients.get(hello.client)
    welcome = m.ClientWelcome(
        config.epoch,
        min(config.client_max_tasks, config.max_tasks),
        config.client_max_bytes,
        config.beat,
        config.max_payload,
        hello.link,
        _window(hub),
        session.number if session is not None else 0,
    )
    hub.send(hello.client, welcome)


def _window(hub: HubState) -> int:
    """Bytes that one more client may have under way to here: a share of what all may.

    Those that came before it have larger shares; together they have a few times as much.
    """
    arriving = hub.config.arriving_bytes
    return arriving and min(MAX_WINDOW, max(1, arriving // min(MOST_WINDOWS, max(1, len(hub.clients)))))


def on_bye(hub: HubState, session: ClientSession, *, cancel: bool) -> None:
    """The client is gone for good: its tasks end with it, or those that say on_client_loss="cancel".

    With a journal the outcomes of the others wait for whoever asks by their ids.
    """
    _end_tasks(hub, session.client, Extent.ATTACHED if cancel else Extent.BOUND)
    is_waited_for = hub.ledger.account(session.client).tasks or (session.has_outcomes and not session.slot)
    if hub.journal is not None and not cancel and is_waited_for:
        session.linked = False
        _left(hub, session)
    else:
        _forget(hub, session)


def on_slot_gone(hub: HubState, slot: str, user: str) -> None:
    """A slot's process has ended, or was killed: what its tasks have submitted ends with it.

    Args:
        slot: its pool's name and its process id.
        user: the user whose key the pool shows, as its slots do.
    """
    gone = [one for one in hub.clients.values() if one.slot == slot and one.user == user]
    for session in gone:
        on_bye(hub, session, cancel=False)


def _forget(hub: HubState, session: ClientSession) -> None:
    """Forget a session whose client is gone for good; its tasks go on, and its account with them.

    A client that returns nevertheless submits again what it still waits for: tasks on their way here are
    found again, tasks that had ended run again.
    """
    if hub.clients.pop(session.client, None) is None:
        return
    hub.sinks.leave(session.client)
    sink_values.withdraw(hub, session.client)
    hub.due.acks.pop(session.client, None)
    hub.due.unwritten.pop(session.client, None)
    if hub.journal is not None:
        for done, failed in session.outcomes():
            hub.journal.delivered(session.client, done, failed, hub.specs)
    hub.dependencies.drop_kept(session.client)
    hub.ledger.backlog.withheld.discard(session.client)
    if session.client in hub.cancellations.pending:
        hub.ledger.backlog.withheld.add(session.client)
    if session.unsplit:
        hub.ledger.account(session.client).forget_finished()
        for record in session.unsplit.values():
            entry = hub.specs.setdefault(record.spec.number, record.spec)
            hub.ledger.readmit(record, entry)
    _close_account(hub, session.client)


def _close_account(hub: HubState, client: int) -> None:
    """Drop the account of a client that has no session, once nothing of it is here either."""
    account = hub.ledger.accounts.get(client)
    if account is not None and not account.is_used and client not in hub.clients:
        hub.ledger.accounts.pop(client, None)


def _is_ending(hub: HubState, client: int) -> bool:
    """Return True while all tasks of a client without a session are being cancelled."""
    pending = hub.cancellations.pending.get(client)
    return pending is not None and pending.extent is not Extent.BOUND


def go_on(hub: HubState) -> None:
    """Cancel the next portion of what is to be cancelled, and write one of what is to be written."""
    _write_outcomes(hub)
    for client in cancellations.step(hub):
        _close_account(hub, client)


def orphans(hub: HubState) -> int:
    """Tasks on their way whose clients have left; they are lost should this hub end."""
    here = {client for client, session in hub.clients.items() if session.present or session.linked}
    here.update(hub.house.clients.values())
    accounts = hub.ledger.accounts
    return sum(len(accounts[client].tasks) for client in accounts.keys() - here)


def cancel_tasks_of(hub: HubState, clients: Iterable[int], reason: str) -> int:
    """Cancel all that these clients have, from the next step on; return how many tasks that are."""
    return sum(cancellations.cancel_all(hub, client, Extent.ALL, reason) for client in clients)


def on_revoked(hub: HubState, users: frozenset[str]) -> None:
    """These users are not let in any more: none of their tasks starts, and what runs of them ends."""
    schedules.on_revoked(hub, users)
    hub.letters.on_revoked(users)
    for client, account in list(hub.ledger.accounts.items()):
        if account.user in users or account.owner in users:
            user = account.user if account.user in users else account.owner
            cancel_tasks_of(hub, [client], f"the key of {user} was revoked")
            session = hub.clients.get(client)
            if session is not None:
                _forget(hub, session)


def on_gone(hub: HubState, client: int) -> None:
    """The link says that nobody is there: an embedded client is gone for good, another may come back."""
    session = hub.clients.get(client)
    if session is not None:
        session.linked = False
        _left(hub, session)
        hub.sinks.leave(client)
        if not session.credit:
            on_bye(hub, session, cancel=True)
        elif session.unsplit:
            _drop_outcomes(hub, session, "it is gone, and has not heard that it is to split a chunk")


def _left(hub: HubState, session: ClientSession) -> None:
    """A client is away: what has ended for it is written down, in portions."""
    if session.present and session.has_outcomes and hub.journal is not None:
        hub.known_clients.leaving.append((session.client, _one_by_one(list(session.outcomes()))))
    session.present = False


def _write_outcomes(hub: HubState) -> None:
    """Write the next portion of what clients have not fetched before they went."""
    left = PORTION
    while hub.known_clients.leaving and left:
        client, outcomes = hub.known_clients.leaving[0]
        for outcome in outcomes:
            if hub.journal is not None and client in hub.clients:
                hub.journal.ended(client, outcome)
            left -= len(outcome.seqs) if isinstance(outcome, DoneRun) else 1
            if left <= 0:
                return
        hub.known_clients.leaving.popleft()


def on_beat(hub: HubState, session: ClientSession) -> None:
    """A client waits: tell it what is accepted, and how many slots serve its tasks."""
    hub.send(session.client, m.Accepted(session.accepted, _slots_for(hub, session)))
    hub.due.news.add(session.client)


def _slots_for(hub: HubState, session: ClientSession) -> list[tuple[str, list[str], int]]:
    """Return the queues and tags of a client's tasks, each with the slots that serve them."""
    specs = hub.specs
    session.specs.intersection_update(specs)
    routes = {specs[number].route[:2] for number in session.specs}
    found = [(queue, sorted(tags), _slots_of(hub, queue, tags)) for queue, tags in routes]
    return sorted(found)[:MOST_ROUTES]


def _slots_of(hub: HubState, queue: str, tags: frozenset[str]) -> int:
    """Return how many slots serve a queue and tags, as counted since the last sweep."""
    found = hub.known_clients.slots.get((queue, tags))
    if found is None:
        lanes = hub.serving.get(queue, {}).values()
        found = sum(lane.hello.slots for lane in lanes if tags <= lane.tags and lane.state not in LEAVING)
        hub.known_clients.slots[queue, tags] = found
    return found


def count_slots_anew(hub: HubState) -> None:
    """Forget how many slots serve what: clients are told of pools that have come or gone."""
    hub.known_clients.slots.clear()


def on_silence(hub: HubState, session: ClientSession, now: float) -> None:
    """Nothing was heard from the client for long: tasks that are bound to it end, unless its link stands.

    A client that stands still, or computes and lets no other thread in, keeps the link and comes back; so
    does a task in a slot, to which its children are bound. A dead client is found when something is sent.
    """
    if session.linked and _is_idle(hub, session):  # it owes no beat
        session.specs.clear()
        session.present &= now - session.heard < IDLE_TTL
        return
    _left(hub, session)
    if session.linked and now - session.heard < hub.config.client_silence:
        hub.out.append(SendClient(session.client, m.Accepted(session.accepted)))
        return
    session.lost = True
    _end_tasks(hub, session.client, Extent.BOUND)
    sink_values.withdraw(hub, session.client)


def _end_tasks(hub: HubState, client: int, extent: Extent) -> None:
    """Cancel tasks of a client that is gone; one that returns is told."""
    cancellations.cancel_all(hub, client, extent)
    cancellations.drop_unclaimed(hub, client, only_bound=True)


def drop_bound(hub: HubState, now: float) -> None:
    """Pools drop what is bound to clients of an earlier hub that have not come back in time."""
    for client in hub.unclaimed.overdue(now):
        session = hub.clients.get(client)
        if session is None or session.lost:
            cancellations.drop_unclaimed(hub, client, only_bound=True)


def forget_absent(hub: HubState, now: float) -> None:
    """Forget clients that have been away too long, or for which more is kept than there is room for.

    Their tasks go on: only outcomes that nobody takes are dropped. A client that stands still keeps its
    link and will take what it gave credit for: no more of its tasks are run meanwhile, and nothing is
    dropped before `result_ttl`.
    """
    config = hub.config
    _share_room(hub)
    absent = [session for session in hub.clients.values() if not session.present]
    kept = sum(session.size for session in absent if not session.linked)
    for session in sorted(absent, key=lambda session: session.heard):
        away, size = _away(hub, session, now), session.size
        if away >= IDLE_TTL and _is_idle(hub, session):
            _forget(hub, session)
        elif away >= config.result_ttl:
            _drop_outcomes(hub, session, f"away for {config.result_ttl:g} s (hub.result_ttl)")
            kept -= 0 if session.linked else size
        elif size > hub.known_clients.most_kept and session.linked:
            hub.out.append(SendClient(session.client, m.Accepted(session.accepted)))  # is it there?
        elif (
            not session.linked and size and (size > hub.known_clients.most_kept or kept > config.result_bytes)
        ):
            _drop_outcomes(hub, session, f"no room for {size} bytes")
            kept -= size
    for client in hub.ledger.accounts.keys() - hub.clients.keys():
        _close_account(hub, client)


def _away(hub: HubState, session: ClientSession, now: float) -> float:
    """Return the seconds for which outcomes have waited for an absent client, or may have.

    With a journal they wait for whoever asks: the time counts from the end of its last task.
    """
    if hub.journal is None:
        return now - session.heard
    if hub.ledger.account(session.client).tasks:
        return 0.0
    return now - max(session.heard, session.ended)


def _share_room(hub: HubState) -> None:
    """Find how much may be kept for one client: when all have too much together, their equal share."""
    sizes = [session.size for session in hub.clients.values() if session.size]
    most = hub.config.client_max_bytes
    if sum(sizes) > hub.config.result_bytes:
        most = min(most, hub.config.result_bytes // len(sizes))
    if most != hub.known_clients.most_kept:
        hub.known_clients.most_kept = most
        hub.due.news.update(session.client for session in hub.clients.values() if session.size)


def _drop_outcomes(hub: HubState, session: ClientSession, reason: str) -> None:
    """Forget a session with the outcomes that wait for it, and say so."""
    fields: dict[str, object] = {
        "client": f"{session.client:016x}",
        "name": session.name,
        "bytes": session.size,
        "tasks": len(hub.ledger.account(session.client).tasks),
        "reason": reason,
    }
    if session.size or session.has_news:
        hub.log("outcomes.dropped", fields)
    _forget(hub, session)


def _is_idle(hub: HubState, session: ClientSession) -> bool:
    """Return True if the hub keeps nothing for a client."""
    waiting = hub.ledger.account(session.client).tasks or session.client in hub.awaited.late
    return not waiting and not session.size and not session.has_news


def _full(hub: HubState) -> str:
    """Return the reason to refuse a further client, or "". Idle absent clients are forgotten first."""
    reason = _no_place(hub)
    if not reason:
        return ""
    for session in list(hub.clients.values()):
        if not session.present and _is_idle(hub, session):
            on_bye(hub, session, cancel=True)
    return _no_place(hub)


def _no_place(hub: HubState) -> str:
    sessions = hub.clients.values()
    count = len(sessions)
    if hub.journal is not None:  # those whose tasks go on without them take no place
        count = sum(session.present or session.linked for session in sessions)
    if count < hub.config.max_clients:
        return ""
    return (
        f"the hub has {count} clients and may have no more (hub.max_clients): close some, "
        "raise that, or start another hub"
    )


def _one_by_one(outcomes: list[tuple[list[DoneRun], list[Failed]]]) -> Iterator[DoneRun | Failed]:
    for done, failed in outcomes:
        yield from done
        yield from failed
