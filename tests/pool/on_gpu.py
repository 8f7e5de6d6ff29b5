"""A check on a machine with a GPU of NVIDIA's, by its driver alone: `python -m tests.pool.on_gpu`.

Two slots share the first GPU, a third sees none; a slot that is killed has freed its memory before the next
one starts. Tasks call the driver (libcuda) by ctypes, so that no package is needed beyond taskmesh's own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from functools import partial

import taskmesh.mesh as mesh_module
from taskmesh import Mesh, gather, task
from taskmesh.hosting.transport import open_port
from taskmesh.pool.gpus import VISIBLE, capacity, chosen, devices
from taskmesh.pool.slots.fork_server_client import SlotOptions
from taskmesh.system.nvml import Nvml

ROUNDS = 5
WAIT_S = 60.0
NO_DEVICE = 100
SHARE = 0.6
"""Share of the GPU's memory that a task takes: two at a time do not fit."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@task
def look() -> tuple[int, int, str, int, int]:
    """Return slot, process, environment, and the first device's count and status of cuInit."""
    count, cuda = ctypes.c_int(), driver()
    status = cuda.cuInit(0)
    if not status:
        cuda.cuDeviceGetCount(ctypes.byref(count))
    threading.Event().wait(0.2)  # the other slots get the next
    return int(os.environ["TASKMESH_SLOT"]), os.getpid(), os.environ[VISIBLE], count.value, status


@task
def take(share: float) -> tuple[int, int, int]:
    """Take a share of the GPU's memory for as long as the process lives; return process, bytes and status."""
    cuda, device, context = driver(), ctypes.c_int(), ctypes.c_void_p()
    free, total, at = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
    status = status or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    status = status or cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    size = int(share * total.value)
    status = status or cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))
    return os.getpid(), size, status


def mesh_of(seen: list[str]) -> Mesh:
    """Return a mesh with a slot for each entry."""
    mesh_module.open_port = partial(open_port, options=SlotOptions(gpus=seen))
    return Mesh(workers=len(seen))


def check_views(gpu: str) -> None:
    """Check what two slots that share a GPU see, and a third one that has none."""
    seen = devices([gpu], 0.5, 3)
    assert (capacity([gpu], 0.5), seen) == (2, [gpu, gpu, ""])
    with mesh_of(seen) as mesh:
        found = {}
        while len(found) < 3:
            for slot, pid, variable, count, status in gather([mesh.submit(look) for _ in range(6)]):
                found[slot] = pid, variable, count, status
    for slot, (pid, variable, count, status) in sorted(found.items()):
        say(f"slot {slot}: process {pid} sees {variable!r}: {count} devices, cuInit {status}")
        assert variable == seen[slot]
        assert (count, status) == ((1, 0) if variable else (0, NO_DEVICE))


def check_memory(gpu: str) -> None:
    """Check that the memory of a killed slot is free when the next one starts."""
    driver_list = Nvml()
    with mesh_of([gpu]) as mesh:
        for number in range(ROUNDS):
            began = time.monotonic()
            pid, size, status = mesh.submit(take, SHARE).result(WAIT_S)
            took = time.monotonic() - began
            listed = pid in driver_list.processes(gpu)
            say(f"{number}: process {pid}, {size >> 30} GiB, status {status}, {took:.2f} s, in NVML {listed}")
            assert status == 0
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Check all of it."""
    gpus = chosen("all", os.environ)
    say(f"GPUs: {gpus}")
    check_views(gpus[0])
    check_memory(gpus[0])
    say("good")


if __name__ == "__main__":
    main()
