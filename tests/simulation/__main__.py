"""`python -m tests.simulation`: see `tests.simulation.simulate`."""

import sys

from tests.simulation.simulate import main

if __name__ == "__main__":
    sys.exit(main())
