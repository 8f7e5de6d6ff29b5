from collections.abc import Iterator

import pytest

from taskmesh.middleware import Around, Call


class Layers:
    """Hooks, one of which is interrupted while it begins or ends.

    Attributes:
        seen: what has begun and ended.
    """

    def __init__(self, interrupted: str) -> None:
        self.seen: list[str] = []
        self._interrupted = interrupted

    def _note(self, word: str) -> None:
        self.seen.append(word)
        if word == self._interrupted:
            raise KeyboardInterrupt

    def outer(self, call: Call) -> Iterator[None]:
        self._note("+outer")
        try:
            yield
        finally:
            self._note("-outer")

    def inner(self, call: Call) -> Iterator[None]:
        self._note("+inner")
        try:
            yield
        finally:
            self._note("-inner")


@pytest.mark.parametrize(
    ("interrupted", "seen"),
    [("+inner", ["+outer", "+inner", "-outer"]), ("-inner", ["+outer", "+inner", "-inner", "-outer"])],
)
def test_an_interrupt_in_an_inner_hook_leaves_no_outer_one_open(interrupted, seen):
    layers = Layers(interrupted)
    around = Around([layers.outer, layers.inner], Call("work", "default"))

    with pytest.raises(KeyboardInterrupt), around:
        pass

    assert layers.seen == seen
