"""`python -m taskmesh` is `taskmesh`."""

import sys

from taskmesh.cli import main

if __name__ == "__main__":
    sys.exit(main())
