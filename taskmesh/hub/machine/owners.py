"""Owners: whose a thing is that a message names, and who may name it.

The role of a key says which messages its holder may send (`security.authorization.RIGHTS`). That is half of
what has to be asked: a message names clients, tasks, pools, sinks, and these belong to somebody. Every field
that names something stands in `NAMED`, and a test fails for one that does not. Users of a hub without keys
all have the name "", so all is theirs.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from taskmesh.core.ids import client_of
from taskmesh.hub.machine.books.client_session import WORKER
from taskmesh.messages import mesh_messages as m
from taskmesh.messages import runs as r
from taskmesh.messages.schedules import Declaration

if TYPE_CHECKING:
    from taskmesh.hub.machine.books.client_session import ClientSession
    from taskmesh.hub.machine.state import HubState

OPERATOR: Final = "operator:"
"""Prefix of users who may look at everything."""
_HUB: Final = "the hub"
"""The user of the hub's own clients; those of keys have a role and a colon before their names."""


class Who(enum.Enum):
    """Those who may name a thing, and how it is found."""

    ANYBODY = "anybody: to name it gives nothing"
    SELF = "whoever says it: it is looked up among the speaker's own"
    USER = "the user whose it is; others are refused"
    SCOPE = "each user has one of his own under that name (`core.ids.owned`)"
    PROCESS = "the process that opened it, which shows its user's key and its own token"
    HOLDER = "the session to which the attempt was sent"
    CONTENT = "whoever has what the number is a digest of"
    OPERATOR = "operators, whose role alone may say the message"


NAMED: Final[dict[tuple[type, str], tuple[str, Who]]] = {
    (m.ClientHello, "client"): ("client session", Who.USER),
    (m.ClientHello, "slot"): ("slot of a pool, and the client whose task it runs", Who.HOLDER),
    (m.Submit, "number"): ("Submit", Who.SELF),
    (m.Submit, "specs"): ("spec", Who.CONTENT),
    (m.Submit, "cancels"): ("task", Who.SELF),
    (m.Submit, "unstarted"): ("task", Who.SELF),
    (m.Submit, "delivered"): ("delivery", Who.SELF),
    (m.CancelTasks, "seqs"): ("task", Who.SELF),
    (m.CancelTasks, "unstarted"): ("task", Who.SELF),
    (m.ResultAck, "number"): ("delivery", Who.SELF),
    (m.Query, "argument"): ("task, schedule or dead letter", Who.ANYBODY),
    (m.Command, "target"): ("task, client, key, pool, limit, schedule or dead letter", Who.OPERATOR),
    (m.Fulfil, "key"): ("promise", Who.SCOPE),
    (m.DropSchedule, "name"): ("schedule", Who.USER),
    (m.SinkReport, "sink"): ("sink", Who.SCOPE),
    (m.SinkReport, "generation"): ("consumer", Who.SELF),
    (m.SinkReport, "number"): ("report", Who.SELF),
    (m.SinkReport, "received"): ("delivery", Who.SELF),
    (m.SinkReport, "acked"): ("outcome", Who.SELF),
    (r.Run, "spec"): ("spec", Who.CONTENT),
    (r.Run, "group"): ("group", Who.SELF),
    (r.Run, "seqs"): ("task", Who.SELF),
    (r.Run, "key"): ("task, promise or kept outcome; of an attachment a task's id", Who.SCOPE),
    (r.Run, "needs"): ("task", Who.SELF),
    (r.Run, "after"): ("task", Who.SELF),
    (r.Run, "part"): ("key of a limit", Who.ANYBODY),
    (r.Spec, "name"): ("task function", Who.SCOPE),
    (r.Spec, "queue"): ("queue", Who.ANYBODY),
    (r.Spec, "tags"): ("tag", Who.ANYBODY),
    (r.Spec, "sink"): ("sink", Who.SCOPE),
    (r.LimitRule, "name"): ("limit", Who.ANYBODY),
    (r.Value, "seq"): ("task", Who.SELF),
    (r.Value, "key"): ("promise, whose signature names it", Who.SELF),
    (Declaration, "name"): ("schedule", Who.USER),
    (Declaration, "part"): ("key of a limit", Who.ANYBODY),
    (m.Hello, "pool"): ("pool", Who.PROCESS),
    (m.Hello, "instance"): ("pool", Who.PROCESS),
    (m.Hello, "session"): ("pool session", Who.ANYBODY),
    (m.Hello, "queues"): ("queue", Who.ANYBODY),
    (m.Hello, "tags"): ("tag", Who.ANYBODY),
    (m.Hello, "key"): ("lane", Who.PROCESS),
    (m.Results, "session"): ("pool session", Who.PROCESS),
    (m.Results, "number"): ("report", Who.SELF),
    (m.Beat, "session"): ("pool session", Who.PROCESS),
    (m.Beat, "pool"): ("pool that is told to say Hello", Who.ANYBODY),
    (m.Bye, "session"): ("pool session", Who.PROCESS),
    (m.Misrouted, "pool"): ("pool, for the log", Who.ANYBODY),
    (m.Misrouted, "session"): ("pool session, for the log", Who.ANYBODY),
    (m.SlotGone, "session"): ("pool session", Who.PROCESS),
    (m.SlotGone, "pid"): ("slot of the pool", Who.USER),
    (m.PoolNeedSpec, "session"): ("pool session", Who.PROCESS),
    (m.PoolNeedSpec, "specs"): ("spec", Who.SELF),
    (r.DoneRun, "spec"): ("spec", Who.HOLDER),
    (r.DoneRun, "client"): ("task", Who.HOLDER),
    (r.DoneRun, "attempt"): ("task", Who.HOLDER),
    (r.DoneRun, "seqs"): ("task", Who.HOLDER),
    (r.Failed, "client"): ("task", Who.HOLDER),
    (r.Failed, "seq"): ("task", Who.HOLDER),
    (r.Failed, "attempt"): ("task", Who.HOLDER),
    (r.Failed, "upstream"): ("task", Who.SELF),
    (r.Held, "client"): ("task", Who.HOLDER),
    (r.Held, "attempt"): ("task", Who.HOLDER),
    (r.Held, "seqs"): ("task", Who.HOLDER),
    (r.Held, "part"): ("key of a limit", Who.ANYBODY),
    (r.Progress, "client"): ("task", Who.HOLDER),
    (r.Progress, "seq"): ("task", Who.HOLDER),
    (r.Progress, "attempt"): ("task", Who.HOLDER),
}
"""The things that the fields of messages to the hub name, each with those who may name it.

Here are refused: USER and PROCESS, but for the sessions of pools, whose keys and tokens the sockets compare
(`security.authorization`). SCOPE is `core.ids.owned`. HOLDER is the fence of the collector, and of `adoption`
for what pools list. CONTENT is compared when a spec comes in.
"""


def sees_all(user: str) -> bool:
    """Return True for operators, and where no keys are in use."""
    return not user or user.startswith(OPERATOR)


def user_of(hub: HubState, client: int) -> str | None:
    """Return the user whose session this is, or was as long as tasks of it are here; None if nobody's."""
    session = hub.clients.get(client)
    if session is not None:
        return session.user
    if hub.house.is_own(client):
        return _HUB
    account = hub.ledger.accounts.get(client)
    return account.user if account is not None else None


def is_another_s(hub: HubState, client: int, user: str) -> bool:
    """Return True if a client session is not this user's: nothing that he says for it counts."""
    owner = user_of(hub, client)
    return owner is not None and owner != user


def may_name(hub: HubState, session: ClientSession) -> bool:
    """Return True if a client may name things: with a pool's key only a task that submits tasks may.

    It names what is of the user for whom it runs, as soon as the hub knows that a pool of this key has a
    task of the client that it says is its own.
    """
    account = hub.ledger.account(session.client)
    if session.parent and account.owner == session.user:
        lanes = [lane for lane in hub.lanes.values() if lane.user == session.user]
        held = (record for lane in lanes for record in lane.held())
        if any(session.parent in (one.client, client_of(one.known_as)) for one in held):
            account.owner = hub.owner(session.parent)
    return account.owner != session.user or not session.user.startswith(WORKER)


def refusal(hub: HubState, request: m.PutSchedule | m.DropSchedule, user: str) -> str:
    """Return why a user may not ask for this, or an empty text: the schedule is another's."""
    name = request.name if isinstance(request, m.DropSchedule) else request.declaration.name
    schedule = hub.schedules.records.get(name)
    if schedule is None or schedule.user == user:
        return ""
    return (
        f"the schedule {name!r} belongs to {schedule.user or 'a program without a key'}: choose another "
        "name, or have an operator remove it (`taskmesh schedule remove`)"
    )


def refusal_of_pool(hub: HubState, hello: m.Hello, user: str, token: bytes) -> str:
    """Return why a sender's Hello does not count, or an empty text: it names another's process."""
    lane = hub.lane_of(hello.pool)
    if lane is None or lane.hello.instance != hello.instance or (lane.user, lane.token) == (user, token):
        return ""
    return f"the process {hello.instance} of pool {hello.pool} is another's"
