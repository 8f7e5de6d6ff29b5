"""What a client asks of its hub, kept for the next link while the answer may be lost with this one."""

from __future__ import annotations

from collections import OrderedDict

from taskmesh.core.actions import Send
from taskmesh.wire import messages as m

MAX_QUESTIONS = 100
"""Queries and commands kept until they are answered, to be asked again over the next link."""

Question = m.Query | m.Command


class OpenQuestions:
    """Queries and commands without an answer."""

    def __init__(self, patience: float) -> None:
        """Args: patience: seconds after which nobody wants the answer any more."""
        self._patience = patience
        self._open: OrderedDict[int, tuple[float, Question]] = OrderedDict()

    def ask(self, message: Question, now: float, out: list[object], *, linked: bool) -> None:
        """Passes a question on, if there is a link; keeps it for the next one if it may be lost on this."""
        if linked:
            out.append(Send(message))
        if isinstance(message, m.Query) or not linked:
            self._open[message.number] = (now, message)
            if len(self._open) > MAX_QUESTIONS:
                self._open.popitem(last=False)

    def again(self, now: float, out: list[object]) -> None:
        """Over a new link: what is unanswered and not too old; a command only if it was never sent."""
        for number, (asked, question) in list(self._open.items()):
            if now - asked < self._patience:
                out.append(Send(question))
            if isinstance(question, m.Command) or now - asked >= self._patience:
                del self._open[number]

    def answered(self, number: int) -> None:
        """It need not be asked again."""
        self._open.pop(number, None)
