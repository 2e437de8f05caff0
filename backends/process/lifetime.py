"""A zygote is killed when its node ends, whatever either of them is doing.

A zygote holds the reading end of a pipe whose only writing end is the node's. When that closes,
the kernel sends SIGKILL, which also ends a process that is stopped, or hangs in an import. The node
binds the zygote to the pipe as soon as it has its process id. The zygote does so again, in case the
node was killed in between. (PR_SET_PDEATHSIG would bind it to the thread that started it.)

Source: ``fcntl(2)``, F_SETOWN, F_SETSIG and O_ASYNC.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

_F_SETSIG = 10


def bind_lifetime(life_fd: int, pid: int) -> None:
    """Have the kernel kill a process when the last writer of a pipe is gone.

    Args:
        life_fd: the reading end; the setting applies to all its duplicates, in all processes.
        pid: a child of this process, or itself.
    """
    fcntl.fcntl(life_fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(life_fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | os.O_ASYNC)


def bind_own_lifetime(life_fd: int) -> None:
    """Bind this process, and end it at once if the last writer is already gone."""
    bind_lifetime(life_fd, os.getpid())
    poll = select.poll()
    poll.register(life_fd, select.POLLIN)
    if poll.poll(0):
        os._exit(0)
