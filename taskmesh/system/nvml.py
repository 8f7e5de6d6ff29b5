"""The GPUs of NVIDIA's driver, by its own library (NVML): no CUDA is initialised, and no package needed."""

from __future__ import annotations

import ctypes
from typing import Any, Final

_LIBRARY: Final = "libnvidia-ml.so.1"
_UUID_BYTES: Final = 96
_MOST_PROCESSES: Final = 1024


class NoGpus(OSError):
    """The driver's library is missing, or refuses a call; the text says why."""


class _Process(ctypes.Structure):
    """One process on a GPU: nvmlProcessInfo_v2_t of nvml.h."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The driver's library.

    Args:
        library: the library; None to load it.

    Raises:
        NoGpus: there is none, or it cannot reach the driver.
    """

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = library or ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NoGpus(f"{_LIBRARY} of NVIDIA's driver is not here: {error}") from None
        self._call("nvmlInit_v2")

    def uuids(self) -> list[str]:
        """Return the UUIDs of all GPUs, in the order in which nvidia-smi counts them."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            device, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            self._call("nvmlDeviceGetUUID", device, text, ctypes.c_uint(_UUID_BYTES))
            found.append(text.value.decode())
        return found

    def processes(self, uuid: str) -> set[int]:
        """Return the processes that compute on a GPU, or on a part of one (MIG)."""
        device, count = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES)
        found = (_Process * _MOST_PROCESSES)()
        self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(device))
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), found)
        return {each.pid for each in found[: count.value]}

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            status = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NoGpus(f"NVIDIA's driver is too old: it has no {name}") from None
        if status:
            raise NoGpus(f"{name} of NVIDIA's driver has failed with {status}")
