"""Lists of tests that others wrote and that do not pass on a mesh, with the reasons.

A line is FILE::CLASS::TEST, with `*` for any text and FILE as a path without `.py`; the `#` line above has
its reason. What a line names has to fail, and it has to name something: so a list can only shrink.
"""

import re
from pathlib import Path
from typing import NamedTuple


class Refused(NamedTuple):
    """A line of a list.

    Attributes:
        pattern: the tests that it names.
        reason: their common fault.
    """

    pattern: str
    reason: str

    def is_about(self, file: str) -> bool:
        return _fits(self.pattern.partition("::")[0], file)

    def names(self, test: str) -> bool:
        return _fits(self.pattern, test)


def refused_tests(path: Path) -> list[Refused]:
    """Read a list."""
    found, reason = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line:
            found.append(Refused(line, reason))
    return found


def _fits(pattern: str, text: str) -> bool:
    """Tell if a text is of a pattern. No other character is special: tests with parameters have brackets."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
