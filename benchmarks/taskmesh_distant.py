"""taskmesh with hub and pool as processes, and a slow network between them: a proxy holds every byte back."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from benchmarks.taskmesh_remote import TaskmeshRemote

if TYPE_CHECKING:
    from tests.faults.chaos import Chaos

DELAY_S = 0.020


class TaskmeshDistant(TaskmeshRemote):
    """Worker and client are 20 ms away from the hub, each way; twice as many slots as usual."""

    rows = frozenset({"distant"})

    def __init__(self) -> None:
        super().__init__()
        self._proxy: Chaos | None = None

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        return "" if find_spec("psutil") else "its proxy needs psutil"

    def open(self, workers: int) -> None:
        """See Contender."""
        super().open(2 * workers)

    def _way(self, address: str) -> str:
        from tests.faults.chaos import Chaos, Weather

        self._proxy = Chaos(self._programs[0].pid, address)
        self._proxy.weather = Weather(delay=DELAY_S)
        return self._proxy.address

    def _stop(self) -> None:
        super()._stop()
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
