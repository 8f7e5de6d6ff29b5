"""`python -m taskmesh.spark.udf_worker --id ID --connection PATH`: the program that Spark starts."""

import sys

from taskmesh.spark.udf_worker.server import main

if __name__ == "__main__":
    sys.exit(main())
