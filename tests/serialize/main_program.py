"""Run as __main__ by test_code: its classes and functions must survive a round trip through a slot."""

import enum
from dataclasses import dataclass

from tests.serialize.echo_slot import call_in_slot

FACTOR = 3


@dataclass
class Point:
    x: int
    seen = 0

    def scaled(self):
        return Point(self.x * FACTOR)


class Color(enum.Enum):
    RED = 1


class Trouble(Exception):
    def __init__(self, code, *, extra):
        super().__init__(f"code {code}")
        self.extra = extra


def scale(point, color):
    assert isinstance(point, Point), "the class is the same one in the slot"
    assert color is Color.RED
    return point.scaled(), color, [Point]


def trouble():
    raise Trouble(5, extra="e")


def main():
    global FACTOR  # noqa: PLW0603
    method = Point.scaled
    point, color, [cls] = call_in_slot(
        scale, Point(2), Color.RED, check="'tests.serialize.main_program' not in sys.modules"
    )
    assert isinstance(point, Point)
    assert point == Point(6)
    assert color is Color.RED
    assert cls is Point
    assert Point.scaled is method, "the class that came back has not overwritten this one"
    FACTOR = 10
    assert point.scaled() == Point(60)
    assert call_in_slot(scale, Point(2), Color.RED)[0] == Point(20), "the changed global is seen"
    Point.seen = 5
    call_in_slot(lambda given: given, point)
    assert Point.seen == 5
    try:
        call_in_slot(trouble)
    except Trouble as error:
        caught = error
    assert (str(caught), caught.extra) == ("code 5", "e")
    assert "in trouble" in str(caught.__cause__)
    print("all held")  # noqa: T201


if __name__ == "__main__":
    main()
