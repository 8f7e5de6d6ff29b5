"""Programs in a sandbox that refuses system calls, made with seccomp: for this process and what it starts.

`python -m tests.harness.sandbox NAME[,NAME...] PROGRAM ARGUMENTS...`
"""

import ctypes
import errno
import os
import platform
import struct
import sys

from tests.harness.program import outcome_of

NUMBERS = {
    "x86_64": {
        "eventfd2": 290,
        "epoll_create1": 291,
        "setsid": 112,
        "waitid": 247,
        "pidfd_open": 434,
        "memfd_create": 319,
        "sched_getaffinity": 204,
    },
    "aarch64": {
        "eventfd2": 19,
        "epoll_create1": 20,
        "setsid": 157,
        "waitid": 95,
        "pidfd_open": 434,
        "memfd_create": 279,
        "sched_getaffinity": 123,
    },
}
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def line(names: str, *program: str) -> list[str]:
    """The command line of a program in a sandbox that refuses these calls, separated by commas."""
    return [sys.executable, "-m", "tests.harness.sandbox", names, *program]


def is_available() -> bool:
    """Whether a child of ours can be put into one."""
    if not sys.platform.startswith("linux") or platform.machine() not in NUMBERS:
        return False
    return outcome_of(line("", sys.executable, "-c", "")).returncode == 0


def refuse(names: list[str]) -> None:
    """From now on the kernel says EPERM to these system calls of this process and its children."""
    numbers = NUMBERS[platform.machine()]
    steps = [(_LOAD, 0, 0, 0)]
    for name in names:
        steps += [(_JUMP_IF_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SECCOMP, _FILTER, program, 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "no sandbox can be made")


if __name__ == "__main__":
    refuse([name for name in sys.argv[1].split(",") if name])
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  filters are inherited, and tests name the program
