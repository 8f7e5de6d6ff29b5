"""The GPUs of a pool's slots: which slot sees which, and when a dead slot has left its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from taskmesh.core.events import SlotExited
from taskmesh.errors import ConfigError
from taskmesh.system.nvml import NoGpus, Nvml

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""The variable by which CUDA is told which GPUs there are. It reads it once, when it is initialised."""
PATIENCE: Final = 5.0
"""Seconds that a dead process may take to leave its GPU."""
LOOK: Final = 0.05
"""Seconds between two looks at that."""


def chosen(text: str, environ: Mapping[str, str], load: Callable[[], Nvml] = Nvml) -> list[str]:
    """Return the UUIDs of the GPUs that a pool may use, never others than its own process may.

    Args:
        text: `all`, or numbers as nvidia-smi has them, or UUIDs, with commas.
        environ: of this process.
        load: loads the driver's library, which is not needed for UUIDs.

    Raises:
        ConfigError: there is no such GPU, or this process may not use it.
    """
    inherited = environ.get(VISIBLE)
    words = [word.strip() for word in text.split(",") if word.strip()]
    given = [] if inherited is None else [word.strip() for word in inherited.split(",") if word.strip()]
    known: list[str] = []
    if words == ["all"] or any(word.isdecimal() for word in (*words, *given)):
        try:
            known = load().uuids()
        except NoGpus as error:
            raise ConfigError(f"--gpus {text}: {error}. UUIDs need no such library") from None
    allowed = known if inherited is None else [_uuid(word, known) for word in given if word != "-1"]
    found = allowed if words == ["all"] else [_uuid(word, known) for word in words]
    refused = set(found) - set(allowed) if inherited is not None else set()
    if refused:
        raise ConfigError(f"--gpus {text}: {VISIBLE}={inherited} does not have {', '.join(sorted(refused))}")
    if not found:
        raise ConfigError(f"--gpus {text}: there is no GPU")
    return list(dict.fromkeys(found))


def _uuid(word: str, known: Sequence[str]) -> str:
    if not word.isdecimal():
        return word
    if int(word) >= len(known):
        raise ConfigError(f"there is no GPU {word}: the driver has {len(known)}, counted from 0")
    return known[int(word)]


def capacity(gpus: Sequence[str], each: float) -> int:
    """Return how many slots can have so many GPUs each, or such a part of one.

    Raises:
        ConfigError: there are too few, or `each` is neither a whole number nor one part of a whole.
    """
    parts = each if each >= 1 else 1 / each if each > 0 else math.nan
    if not (math.isfinite(parts) and abs(parts - round(parts)) < 0.05):
        raise ConfigError(f"--gpus-per-slot has to be a whole number, or a part as 0.5 or 0.25, not {each:g}")
    slots = len(gpus) // round(parts) if each >= 1 else len(gpus) * round(parts)
    if not slots:
        raise ConfigError(f"--gpus-per-slot {each:g}: there are only {len(gpus)}")
    return slots


def devices(gpus: Sequence[str], each: float, slots: int) -> list[str]:
    """Return what each slot sees, by its number: UUIDs with commas; nothing if none is left for it."""
    able, size = capacity(gpus, each), max(1, round(each))
    found = [",".join(gpus[(number * size) % len(gpus) :][:size]) for number in range(min(slots, able))]
    return found + [""] * (slots - len(found))


class GpuExits:
    """A timer of the pool's loop: it tells the end of a slot when its process has left its GPUs.

    The next process of that slot starts then, and finds their memory free.

    Args:
        seen: what each slot sees, by its number.
        tell: takes the ends of slots.
        load: loads the driver's library. Without one, ends are told at once.
    """

    def __init__(
        self, seen: Sequence[str], tell: Callable[[SlotExited], None], load: Callable[[], Nvml] = Nvml
    ) -> None:
        self.deadline = math.inf
        self._seen = seen
        self._tell = tell
        self._driver: Nvml | None = None
        with contextlib.suppress(NoGpus):
            self._driver = load()
        self._leaving: list[tuple[SlotExited, int, float]] = []

    def exited(self, event: SlotExited, pid: int, now: float) -> None:
        """The process of a slot has ended; it had the id `pid`, 0 if it was never up."""
        self._leaving.append((event, pid, now + PATIENCE if pid else now))
        self.turn(now)

    def turn(self, now: float) -> None:
        leaving, self._leaving = self._leaving, []
        for event, pid, until in leaving:
            if now < until and self._is_there(event.slot, pid):
                self._leaving.append((event, pid, until))
            else:
                self._tell(event)
        self.deadline = now + LOOK if self._leaving else math.inf

    def _is_there(self, slot: int, pid: int) -> bool:
        if self._driver is None:
            return False
        seen = self._seen[slot % len(self._seen)]
        try:
            return any(pid in self._driver.processes(uuid) for uuid in seen.split(",") if uuid)
        except NoGpus:
            return False
