"""`python -m taskmesh.cli`, the same as `taskmesh`."""

from __future__ import annotations

import sys

from taskmesh.cli import main

sys.exit(main())
