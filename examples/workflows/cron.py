"""Cron: the hub runs a function by the clock: each second here, or by a line such as "0 9 * * mon-fri"."""

import os
import tempfile
from pathlib import Path

from taskmesh import Mesh, Schedule, current_task


def report(path: str) -> None:
    Path(path).write_text(str(current_task().scheduled_for.microsecond))


with tempfile.TemporaryDirectory() as folder, Mesh(workers=2) as mesh:
    os.mkfifo(path := f"{folder}/news")
    mesh.schedule("report", report, path, when=Schedule(1, overlap="skip"))
    print([Path(path).read_text() for _ in range(2)], mesh.unschedule("report"))  # ['0', '0'] True
