"""Files that other programs read, checked against their schemas."""

import sys
from pathlib import Path

from tests.harness.program import outcome_of


def check_schema(schema: str, *files: Path) -> None:
    """Check files against a schema that the package check-jsonschema carries."""
    line = ["-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    checked = outcome_of([sys.executable, *line])
    assert checked.returncode == 0, checked.stdout + checked.stderr
