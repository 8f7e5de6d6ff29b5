"""The processes of a fork server's session: descriptors of them, their ends, and the memory that they take.

Everything that is Linux's alone (pidfd, prctl, /proc) may be missing, or refused by a sandbox. Then deaths
are noticed by `waitpid` and by the ends of sockets, and processes are killed by their id or group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
from collections.abc import Collection, Iterator
from typing import Final

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
_ROUNDS: Final = 5

# --- one process --------------------------------------------------------------------------------------------


def open_process(pid: int) -> int | None:
    """Return a descriptor (pidfd) that becomes readable when the process ends.

    None if it has ended already, or the system has no such descriptors.
    """
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def send_signal(pidfd: int | None, sign: int = signal.SIGKILL) -> bool:
    """Send a signal to the process of a descriptor, never to one that got the same id later.

    Returns:
        False when that cannot be done: to be killed, the process must be found by its id.
    """
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, sign)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True


def die_with_parent(parent: int) -> None:
    """Have the calling process killed when its parent `parent` ends, or now if that has ended already.

    Where there is no prctl it only outlives a fork server that is killed until the supervisor kills it.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become_user(name: str) -> None:
    """Make the calling process another user's, for good; root alone can do that.

    Its memory has to be its own again (PR_SET_DUMPABLE), or it could not open what is in /proc/self.

    Raises:
        KeyError: there is no such user.
        OSError: this process may not become that user.
    """
    user = pwd.getpwnam(name)
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    _prctl(_PR_SET_DUMPABLE, 1)
    os.environ.update({"HOME": user.pw_dir, "USER": name, "LOGNAME": name})


def name_process(name: str) -> None:
    """Set the calling process's name in `ps` and `top`; Linux keeps 15 bytes of it."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def adopt_orphans() -> None:
    """Make orphaned descendants of the calling process its children, so that it ends and reaps them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, argument: object) -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, argument, 0, 0, 0)


# --- sessions and process groups ----------------------------------------------------------------------------


def session_members(session: int) -> list[int]:
    """Return the live processes of a session other than its leader; none where there is no /proc."""
    return [pid for pid, *_, own in _processes() if own == session and pid != session]


def end_session(session: int) -> None:
    """SIGKILL every process of a session but its leader.

    The caller is the leader, or its parent and has not reaped it yet: so the session's id cannot be that of
    another. A process that has made a session of its own is left alone.
    """
    for _ in range(_ROUNDS):  # a process may fork while we look
        members = session_members(session)
        if not members:
            return
        for pid in members:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def end_orphans(others: Collection[int]) -> set[int]:
    """SIGKILL the children of the calling process but for some, whatever their sessions; return them.

    What they leave behind becomes the calling process's when they have ended: it calls this again.
    """
    ended = set()
    for pid, parent, *_ in _processes():
        if parent == os.getpid() and pid not in others:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                ended.add(pid)
    return ended


def memory_of_groups(leaders: Collection[int]) -> dict[int, dict[int, int]]:
    """Return the memory of process groups: by leader, the bytes of each live process.

    Pages of files are not counted: killing a process frees none of them.
    """
    memory: dict[int, dict[int, int]] = {leader: {} for leader in leaders}
    for pid, _, group, _ in _processes():
        if group in memory:
            memory[group][pid] = _own_memory(pid)
    return memory


def private_memory(pid: int) -> int:
    """Return the bytes of a process's memory that are no file's and that it shares with no other."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            _, resident, shared, *_ = map(int, statm.read().split())
    except OSError:  # it has ended, or there is no /proc
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _processes() -> Iterator[tuple[int, int, int, int]]:
    """Yield each live process with its parent, group and session."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    fields = stat.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                yield int(name), int(fields[1]), int(fields[2]), int(fields[3])


def _own_memory(pid: int) -> int:
    """Return the bytes of a process that are no file's."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            lines = [line.split() for line in status]
    except OSError:
        return 0
    return sum(int(line[1]) << 10 for line in lines if line[0] in {"RssAnon:", "RssShmem:"})
