"""A Spark driver in a process of its own: it runs the jobs of tests.spark.driven that it is told of.

One process has room for one Spark session. This one opens the session that its argument describes, says that
it is ready, and then takes a line for each job.
"""

import json
import os
import sys
import threading
import traceback

from pyspark.sql import SparkSession

from tests.spark import driven


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Java prints is no answer
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder
    remote = settings.pop("remote", "")
    builder = builder.remote(remote) if remote else builder.master(settings.pop("master"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    lock = threading.Lock()

    def carry_out(order: dict) -> None:
        answer = {"number": order["number"]}
        try:
            answer["value"] = getattr(driven, order["job"])(spark, **order["arguments"])
        except Exception as error:  # noqa: BLE001  the test asks for it
            answer["error"] = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        with lock:
            print(json.dumps(answer), file=answers)

    print(json.dumps({"number": 0, "value": "ready"}), file=answers)
    threads = []
    for line in sys.stdin:
        threads.append(threading.Thread(target=carry_out, args=(json.loads(line),)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    spark.stop()


main()
