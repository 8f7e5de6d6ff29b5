"""A pool's membership: its session with the hub, from Hello to Bye, and what it has to tell there."""

from __future__ import annotations

from taskmesh.core.actions import DialLane, HangUp, PoolAction, SendBeat, SendHub
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Progress
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.machine.spool import MAX_REPEATS, Spool

PACE = 0.5
"""Share of the time between Hellos that a session lasts at least: lanes that are refused make no storm."""
FIRST_WAIT = 0.05
"""Seconds after which the first Hello is repeated, then twice as long each time, to the time between Hellos.

The answer may have been published before this pool's subscription had arrived.
"""


class Membership:
    """A pool's sessions with its hub, one after the other.

    Args:
        config: Settings of the pool.
        now: The time.
        out: Takes the actions asked for here.

    Attributes:
        return_wanted: Number of tasks to be handed back.
        epoch: The hub's that it was last welcomed by.
        session: The session, 0 while it asks for one.
        received: Number of the last lane message of the unbroken run.
        lease: Seconds of silence after which its work goes to others.
        spool: Results that the hub has not acknowledged.
    """

    def __init__(self, config: PoolSettings, now: float, out: list[PoolAction]) -> None:
        self.return_wanted = 0
        self.epoch = 0
        self.session = 0
        self.received = 0
        self.lease = config.lease
        self.spool = Spool()
        self._out = out
        self._config = config
        self._beat = config.beat
        self._hello_number = 0
        self._hello_at = now
        self._hello_wait = config.hello
        self._opened = -1e9
        self._beat_at = now + config.beat
        self._replied = now
        self._stamp = (0.0, now)
        self.ask(now)

    @property
    def deadline(self) -> float:
        return self._beat_at if self.session else self._hello_at

    def is_mine(self, epoch: int, session: int) -> bool:
        return bool(self.session) and session == self.session and epoch == self.epoch

    def hub_is_silent(self, now: float) -> bool:
        """Return True if the hub has left several beats unanswered."""
        return now - self._replied > self._config.patience_beats * self._beat

    def is_given_up(self, now: float) -> bool:
        """Return True if the hub was silent for a lease: if it lives, others have this pool's work."""
        return now - self._replied > self.lease

    # --- coming -------------------------------------------------------------------------------------------

    def ask(self, now: float) -> None:
        """Give the session up and ask for a new one, with all that is held."""
        if self.session:
            self._out.append(HangUp())
        self.session = 0
        self._hello_number += 1
        self._hello_at = max(now, self._opened + PACE * self._config.hello)
        self._hello_wait = min(FIRST_WAIT, self._config.hello)
        self.spool.renew()

    def is_due(self, now: float) -> bool:
        return now >= (self._beat_at if self.session else self._hello_at)

    def hello(self, inventory: list[Held], slots: int, now: float) -> None:
        """Ask for a session.

        Args:
            inventory: All that slots and backlog hold for the hub.
            slots: Number of slots that the hub may count on.
            now: The time.
        """
        config = self._config
        self._hello_at = now + self._hello_wait
        self._hello_wait = min(2.0 * self._hello_wait, config.hello)
        hello = m.Hello(
            config.pool,
            config.instance,
            self._hello_number,
            slots,
            list(config.queues),
            list(config.tags),
            self.epoch,
            self.session,
            inventory + self.spool.inventory(),
            python=config.python,
            host=config.host,
            pid=config.pid,
            cloudpickle=config.cloudpickle,
        )
        self._out.append(SendHub(hello))

    def welcomed(self, welcome: m.Welcome, now: float) -> bool:
        """Take in a Welcome; return True if it opens the session that was asked for."""
        mine = welcome.instance == self._config.instance and welcome.number == self._hello_number
        if self.session or not mine:
            return False
        self.epoch, self.session = welcome.epoch, welcome.session
        self.return_wanted = 0
        self._beat, self.lease = welcome.beat, welcome.lease
        self.received = 0
        self._replied = self._opened = now
        self._stamp = (0.0, now)
        self._beat_at = now
        self._out.append(DialLane(welcome.lane, welcome.max_payload))
        return True

    # --- staying ------------------------------------------------------------------------------------------

    def admits(self, tasks: m.Tasks, now: float) -> bool:
        """Return True if a lane message is the session's next one; a gap ends the session."""
        if not self.is_mine(tasks.epoch, tasks.session):
            self._out.append(SendHub(m.Misrouted(self._config.pool, tasks.epoch, tasks.session)))
            return False
        if tasks.lane_seq <= self.received:
            return False
        if tasks.lane_seq != self.received + 1:
            self.ask(now)
            return False
        self.received = tasks.lane_seq
        self.spool.acknowledged(tasks.acked, now)
        self._stamp = (tasks.sent, now)
        return True

    def replied(self, reply: m.BeatReply, now: float) -> None:
        """Take in the answer to a beat; session 0 says that the hub does not know this pool.

        Beats have a connection of their own, so that one of the session before may be answered in the next.
        """
        if not self.session:
            return
        if reply.session == 0:
            if reply.about in (0, self.session):
                self.ask(now)
        elif self.is_mine(reply.epoch, reply.session):
            self._replied = now
            self.spool.acknowledged(reply.acked, now)

    def hurry(self, now: float) -> None:
        """Make the next beat due now, since something that it tells has changed."""
        if self.session:
            self._beat_at = now

    def beat_is_due(self, now: float) -> bool:
        """Return True if it is time for a beat; ask for a new session if the hub has long been silent."""
        if self.session and self.hub_is_silent(now):
            self.ask(now)
        return bool(self.session) and now >= self._beat_at

    def beat(self, running: list[Progress], state: str, slots: int, now: float) -> None:
        """Tell the hub that the pool lives, and repeat reports that it should have acknowledged by now.

        Args:
            running: The tasks that run.
            state: The pool's state.
            slots: Number of slots that the hub may count on.
            now: The time.
        """
        self._beat_at = now + self._beat
        spool = self.spool
        beat = m.Beat(
            self.epoch,
            self.session,
            self._config.pool,
            self.received,
            spool.reports.first - 1,
            spool.reports.next - 1,
            running,
            state,
            slots,
        )
        self._out.append(SendBeat(beat))
        self._out += map(SendHub, spool.overdue(now, self._beat))
        if spool.reports.repeats > MAX_REPEATS:
            self.ask(now)

    def report(self, lag: float, now: float) -> None:
        """Send what the spool has gathered.

        Args:
            lag: Seconds that the pool's own slots wait for a refill.
            now: The time.
        """
        if not self.session:
            return
        spool = self.spool
        while spool.has_news:
            results = spool.close(self.epoch, self.session, now)
            results.echo, came = self._stamp
            results.held = now - came
            results.lag = lag
            self._out.append(SendHub(results))

    def bye(self) -> None:
        """Leave for good, and tell the number of reports; one that was not sent counts, and never comes."""
        if self.session:
            sent = self.spool.reports.next - 1 + self.spool.has_news
            self._out.append(SendHub(m.Bye(self.epoch, self.session, sent)))
