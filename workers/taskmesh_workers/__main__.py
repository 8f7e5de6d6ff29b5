"""`python -m taskmesh_workers`."""

from __future__ import annotations

import sys

from taskmesh_workers.program import main

sys.exit(main(sys.argv[1:]))
