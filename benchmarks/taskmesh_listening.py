"""taskmesh with the hub in this process, as a mesh that listens, and the pool as a process of its own."""

from __future__ import annotations

import os

from benchmarks.contender import ALL_ROWS
from benchmarks.ports import free_ports
from benchmarks.taskmesh_remote import TaskmeshRemote


class TaskmeshListening(TaskmeshRemote):
    """`with Mesh(bind=..., workers=0) as mesh`, and one `taskmesh worker` with all slots that dials it."""

    rows = ALL_ROWS - {"start"}

    def open(self, workers: int) -> None:
        """Listen, start the worker and wait until a task has come back.

        Raises:
            RuntimeError: The worker ended, or no task came back in time.
        """
        from taskmesh import Mesh

        for name in [name for name in os.environ if name.startswith("TASKMESH_")]:
            del os.environ[name]
        self._mesh = Mesh(bind=f"tcp://127.0.0.1:{free_ports(3)}", workers=0, **self.settings)
        self._mesh.__enter__()
        self.address = self._mesh.address
        try:
            self._start_worker(workers)
            self._wait_for_first_result()
        except BaseException:
            self._stop()
            self._mesh.close(cancel=True)
            raise
        self.submit = self._mesh.submit
