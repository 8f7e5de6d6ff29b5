"""A program that takes from a sink, and writes down what it gets before it acknowledges it.

With one more argument these are messages, each with a number in it; else results.
"""

import sys

from taskmesh import Mesh
from tests.harness.journal import Journal


def main() -> None:
    address, journal, credit = sys.argv[1:4]
    log = Journal(journal)
    with Mesh(address, hub__lease=2.0) as mesh, mesh.sink("s", credit=credit) as sink:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for outcome in sink:
            log.write("got", int(bytes(outcome.message())) if sys.argv[4:] else outcome.result())


if __name__ == "__main__":
    main()
