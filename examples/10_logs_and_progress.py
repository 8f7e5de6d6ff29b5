"""Logs and progress: what a task logs comes to the program, and how far it is can be seen."""

import logging

from taskmesh import Mesh, current_task, task

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


@task
def clean(words: list[str]) -> int:
    log = logging.getLogger("cleaner")
    for done, word in enumerate(words, 1):
        if not word.isalpha():
            log.warning("%r is no word", word)
        current_task().progress(done, len(words))  # future.progress in the program
    return sum(map(str.isalpha, words))


if __name__ == "__main__":
    with Mesh(workers=2) as mesh:
        future = clean.submit(["a", "b", "4", "d"])
        print(future.result())  # 3
        print(future.progress)  # (4, 4)

        # The warning is a record of the program's own logger "cleaner", and can be read here as well.
        # With @task(stream_logs=True) what the task prints comes, too.
        print([entry.text for entry in future.logs()])  # ["'4' is no word"]

        # A bar on a terminal and in a notebook, a line now and then elsewhere.
        print(sum(mesh.map(abs, range(-1000, 0), progress="abs")))  # 500500
