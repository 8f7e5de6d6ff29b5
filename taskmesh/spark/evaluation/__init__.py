"""Spark's own functions on pools: PySpark evaluates them there as it does in its workers."""
