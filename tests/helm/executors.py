"""The example of workers/spark, read: its properties, its policy and what Spark adds to pods."""

from tests.helm.rendering import ROOT, Object, yaml

SPARK = ROOT / "workers/spark"
EXECUTOR = {"spark-role": "executor", "spark-version": "4.3.0"}
"""Labels of an executor's pod; tests/spark/test_executors.py looks them up in one that Spark has made."""


def conf() -> dict[str, str]:
    """The properties."""
    lines = (SPARK / "executors.conf").read_text().splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def policy() -> Object:
    """The NetworkPolicy of Spark's namespace."""
    found: Object = yaml().safe_load((SPARK / "network-policy.yaml").read_text())
    return found
