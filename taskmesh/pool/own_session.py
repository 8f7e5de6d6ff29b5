"""Starting a program in a session of its own, where that is possible."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Sequence


def started(line: Sequence[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Starts a program with these descriptors, so that a terminal's Ctrl-C does not reach it.

    In a sandbox without setsid it stays in our session. Then what its grandchildren start may outlive it.

    Raises:
        OSError: there is no process for it.
    """
    try:
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=descriptors, start_new_session=True)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOSYS}:
            raise
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=descriptors)
