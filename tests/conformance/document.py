"""Writes docs/explanation/conformance.md from the conformance tests: `make conformance`.

Without arguments the tests are run first, and nothing is written unless all pass. The verdict of a clause is
what the docstrings of its tests say: "Deviates, D4: ...", "Holds, but see D2: ...", "Not used: ...", or
nothing: it holds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conformance.clauses import CLAUSES, DEVIATIONS, FAMILIES, SHOWN_IN_CORE, Clause

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs/explanation/conformance.md"
ORDER = ("tcp", "ipc", "inproc", "typed", "raw", "wire")
HEAD = """\
# Conformance of taskmesh.sockets

`make conformance` writes this page from tests/conformance, which has a test for each clause; do not edit it.
The clauses are paraphrased: PIPE is 30/PIPELINE, SG 49/SCATTERGATHER, PS 29/PUBSUB, TBL the table of socket
types. Every test runs over the transports named, with our sockets at one end, and at the other end ours
(typed), pyzmq's (raw) or a bare connection that speaks ZMTP (wire). Measured with libzmq 4.3.5; Scatter and
Gather are emulated over PUSH and PULL. "Not used" marks a permission (MAY) that the sockets do not use.
"""

IN_CORE = """\
Here a peer is a pool, its outgoing queue is the credit window of its lane, and its incoming queue the spool
of its reports. Where the framework promises more than a socket, the test shows that: tasks that a socket
would discard with a peer are pushed again, and results that a pool has sent count even when it is gone.
A lane is a Push and the collector a Pull: the sockets alone keep PIPE-03 and PIPE-18.

| clause | what it asks for | shown in tests/ by |
|---|---|---|\
"""


@dataclass
class Found:
    """What was found for one clause."""

    tests: set[str] = field(default_factory=set)
    transports: set[str] = field(default_factory=set)
    peers: set[str] = field(default_factory=set)
    remarks: set[str] = field(default_factory=set)

    def add(self, item: pytest.Function) -> None:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        self.tests.add(item.originalname)
        self.transports |= {parameters["transport"]} if "transport" in parameters else set()
        self.peers |= {parameters["peer"]} if "peer" in parameters else set()
        if item.function.__doc__:
            self.remarks.add(item.function.__doc__.partition("\n")[0])

    @property
    def verdict(self) -> str:
        """Deviates, holds with a note, not used, or holds: the gravest remark decides."""
        for word, text in (("Deviates", "deviates"), ("Holds", "holds"), ("Not used", "not used")):
            remarks = [remark for remark in self.remarks if remark.startswith(word)]
            if remarks:
                notes = sorted({note for remark in remarks for note in re.findall(r"\bD\d+\b", remark)})
                return f"{text}, {', '.join(notes)}" if notes else text
        return "holds"


class Collector:
    """A pytest plugin that keeps the items and counts what did not pass."""

    def __init__(self) -> None:
        self.items: list[pytest.Function] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = [item for item in items if isinstance(item, pytest.Function)]


def run(*, collect_only: bool) -> list[pytest.Function]:
    """Runs or only collects the tests.

    Raises:
        SystemExit: a test failed or could not be collected.
    """
    collector = Collector()
    # test_document.py compares the document with the tests: it would forbid to write what has changed
    ignored = f"--ignore={HERE / 'test_document.py'}"
    arguments = ["-q", "--no-header", "-p", "no:cacheprovider", ignored, str(HERE)]
    code = pytest.main(
        [*arguments, *(["--collect-only", "-qq"] if collect_only else [])], plugins=[collector]
    )
    if code != pytest.ExitCode.OK:
        sys.exit("conformance tests do not all pass: docs/explanation/conformance.md is not written")
    return collector.items


def assign(items: list[pytest.Function]) -> dict[str, Found]:
    """The findings for each clause that has a test."""
    found: dict[str, Found] = defaultdict(Found)
    for item in items:
        marked = {name for mark in item.iter_markers("clauses") for name in mark.args}
        for clause in CLAUSES:
            if clause.id in marked or item.originalname.startswith(clause.test_prefix):
                found[clause.id].add(item)
    return found


def row(clause: Clause, found: Found) -> str:
    transports = ", ".join(sorted(found.transports, key=ORDER.index)) or "-"
    peers = ", ".join(sorted(found.peers, key=ORDER.index)) or "-"
    return f"| {clause.id} | {clause.keyword} | {clause.text} | {found.verdict} | {transports} | {peers} |"


def table(clauses: list[Clause], found: dict[str, Found]) -> list[str]:
    head = [
        "| clause | keyword | what it asks for | verdict | transports | against |",
        "|---|---|---|---|---|---|",
    ]
    return [*head, *(row(clause, found[clause.id]) for clause in clauses), ""]


def render(items: list[pytest.Function]) -> str:
    """The document.

    Raises:
        SystemExit: a clause has no test, or a verdict names a note that is not there.
    """
    found = assign(items)
    if missing := [clause.id for clause in CLAUSES if clause.id not in found]:
        sys.exit(f"no test is named after {', '.join(missing)}")
    named = {note for each in found.values() for note in re.findall(r"D\d+", each.verdict)}
    if unknown := named - set(DEVIATIONS):
        sys.exit(f"no note {', '.join(sorted(unknown))} in clauses.py")
    verdicts = [found[clause.id].verdict.partition(",")[0] for clause in CLAUSES]
    hold, deviate, unused = (verdicts.count(word) for word in ("holds", "deviates", "not used"))
    parts = [HEAD, f"Of {len(CLAUSES)} clauses {hold} hold, {deviate} deviate, {unused} are not used.", ""]
    for family, title in FAMILIES.items():
        parts += [f"## {title}", "", *table([c for c in CLAUSES if c.family == family], found)]
    parts += ["## Ventilator and collector, held to 30/PIPELINE", "", IN_CORE]
    texts = {clause.id: clause.text for clause in CLAUSES}
    parts += [f"| {clause} | {texts[clause]} | {test} |" for clause, test in SHOWN_IN_CORE.items()]
    parts += ["", "## Notes", "", *(f"- **{name}** {text}" for name, text in DEVIATIONS.items()), ""]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.document", description=__doc__)
    parser.add_argument("--collect-only", action="store_true", help="do not run the tests")
    parser.add_argument("--check", action="store_true", help="fail if the document would change")
    options = parser.parse_args()
    text = render(run(collect_only=options.collect_only))
    if options.check:
        if not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != text:
            sys.exit("docs/explanation/conformance.md is not what the tests say: run `make conformance`")
        return
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(text, encoding="utf-8")
    sys.stdout.write(f"written: {DOCUMENT.relative_to(HERE.parents[1])}\n")


if __name__ == "__main__":
    main()
