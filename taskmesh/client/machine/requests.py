"""Requests of a client to its hub, kept for the next link while their answer may be lost with this one.

What the program's code declares is kept for the next hub, too.
"""

from __future__ import annotations

from collections import OrderedDict

from taskmesh.core.actions import ClientAction, Send
from taskmesh.messages import mesh_messages as m

MOST_REQUESTS = 100
"""Requests that are kept until they are answered."""

Request = m.Query | m.Command | m.Fulfil | m.PutSchedule | m.DropSchedule


class PendingRequests:
    """Queries and commands without an answer.

    A query is asked again over each link until it is answered, and so is what may be said twice: a
    fulfilment, of which only the first counts, and a schedule. A command is kept only while there is no link:
    once sent it may have been obeyed, and an operator who hears nothing looks before saying it again.

    Args:
        patience: Seconds after which nobody wants the answer any more.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._pending: OrderedDict[int, tuple[float, Request]] = OrderedDict()
        self._declared: dict[str, m.PutSchedule] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    def ask(self, request: Request, now: float, out: list[ClientAction], *, linked: bool) -> None:
        """Pass a request on, if there is a link; keep it for the next one if it may be lost on this.

        Args:
            request: The request.
            now: The time.
            out: Takes the action.
            linked: True if there is a link.
        """
        if isinstance(request, m.PutSchedule) and request.declaration.in_code:
            self._declared[request.declaration.name] = m.PutSchedule(0, request.declaration)
        if linked:
            out.append(Send(request))
        if not isinstance(request, m.Command) or not linked:
            self._pending[request.number] = (now, request)
            if len(self._pending) > MOST_REQUESTS:
                self._pending.popitem(last=False)

    def again(self, now: float, out: list[ClientAction]) -> None:
        """Ask over a new link whatever is unanswered and not too old.

        Args:
            now: The time.
            out: Takes the actions.
        """
        for number, (asked, request) in list(self._pending.items()):
            is_wanted = now - asked < self._patience
            if is_wanted:
                out.append(Send(request))
            if isinstance(request, m.Command) or not is_wanted:
                del self._pending[number]

    def declare(self, out: list[ClientAction]) -> None:
        """Declare the schedules of the program's code to another hub; nobody waits for an answer."""
        out += [Send(put) for put in self._declared.values()]

    def answered(self, number: int) -> None:
        self._pending.pop(number, None)
