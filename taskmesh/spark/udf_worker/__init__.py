"""A prototype of a worker for Spark's UDF worker protocol (SPARK-55278), which Spark 4.3 does not use yet.

Needs the extras `taskmesh[spark,spark-udf-worker]`. See docs/adr/0037-spark-udf-workers.md.
"""
