"""`python -m taskmesh.testing`: see `taskmesh.testing.simulate`."""

import sys

from taskmesh.testing.simulate import main

if __name__ == "__main__":
    sys.exit(main())
