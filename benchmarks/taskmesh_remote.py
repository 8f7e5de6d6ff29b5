"""taskmesh with the hub and the pool as processes of their own, over tcp on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contender import ALL_ROWS, CLIENT_ROWS, FUTURE_ROWS
from benchmarks.ports import free_ports
from benchmarks.rates import RATE_ROWS
from benchmarks.taskmesh_embedded import TaskmeshEmbedded

ROOT = Path(__file__).resolve().parents[1]
READY_S = 20.0
COMMAND = [sys.executable, "-c", "import sys; from taskmesh.cli import main; sys.exit(main())"]


class TaskmeshRemote(TaskmeshEmbedded):
    """`taskmesh hub`, one `taskmesh worker` with all slots, and a client in this process."""

    rows = (ALL_ROWS - {"start"}) | CLIENT_ROWS | FUTURE_ROWS | RATE_ROWS

    def __init__(self) -> None:
        self.address = ""
        self.hub_options: Sequence[str] = ()
        self.worker_options: Sequence[str] = ()
        self.settings: dict[str, object] = {}
        self._programs: list[subprocess.Popen[bytes]] = []

    def open(self, workers: int) -> None:
        """Start both programs and wait until a task has come back.

        Raises:
            RuntimeError: A program ended, or no task came back in time.
        """
        self.address = address = f"tcp://127.0.0.1:{free_ports(3)}"
        try:
            self._start("hub", "--bind", address, *self.hub_options)
            way = self._way(address)
            self._start_worker(workers, way)
            self.join(way)
            self._wait_for_first_result()
        except BaseException:
            self._stop()
            raise

    def join(self, address: str) -> None:
        """See SharedContender."""
        from taskmesh import Mesh

        self._mesh = Mesh(address, **self.settings)
        self._mesh.__enter__()
        self.submit = self._mesh.submit

    def close(self) -> None:
        """Leave the mesh, then end worker and hub, in this order."""
        try:
            super().close()
        finally:
            self._stop()

    def _way(self, address: str) -> str:
        """Return the address by which worker and client reach the hub."""
        return address

    def _start_worker(self, slots: int, address: str = "") -> None:
        line = ("benchmarks.workloads", "--address", address or self.address, "--concurrency", str(slots))
        self._start("worker", *line, *self.worker_options)

    def _start(self, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKMESH_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
        self._programs.append(
            subprocess.Popen([*COMMAND, *arguments], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
        )

    def _wait_for_first_result(self) -> None:
        future = self._mesh.submit(abs, -1)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            for program in self._programs:
                if program.poll() is not None:
                    raise RuntimeError(
                        f"{program.args!r} ended with {program.returncode}: see its messages above"
                    )
            try:
                future.result(timeout=0.05)
            except TimeoutError:
                continue
            return
        raise RuntimeError(f"no result from hub and worker within {READY_S:.0f} s")

    def _stop(self) -> None:
        end_all(self._programs)


def end_all(programs: list[subprocess.Popen[bytes]]) -> None:
    """End programs, the last one first."""
    while programs:
        program = programs.pop()
        program.terminate()
        try:
            program.wait(10)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
