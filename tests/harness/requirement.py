"""What a test needs from the machine: missing at home it skips, missing in CI it fails."""

import os
import shutil

import pytest


def require(present: object, reason: str) -> None:
    """Skip the test with the reason if what it needs is not there; with CI set, fail it.

    Args:
        present: true when the test can run.
        reason: what is missing and how to get it.
    """
    if present:
        return
    if os.environ.get("CI"):
        pytest.fail(f"missing in CI: {reason}", pytrace=False)
    pytest.skip(reason)


def require_java() -> None:
    """Spark needs it; which one does not matter to taskmesh."""
    require(shutil.which("java"), "Java 17 or later: apt install default-jre-headless")
