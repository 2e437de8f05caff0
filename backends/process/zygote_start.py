"""How the process of a zygote is started."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from . import wire

_BOOT = (
    "import json, os, sys; control = int(sys.argv[1]);"
    "settings = json.loads(os.read(control, 1 << 20)); sys.path[:] = settings.pop('path');"
    "from dandelion.backends.process.package_imports import restrict;"
    "restricted = restrict(settings['environment']) if settings['environment'] else None;"
    "from dandelion.backends.process.zygote import run;"
    "run(control, settings, restricted)"
)
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # a retried pure function returns the same outputs
    "TZ": "UTC0",
    # A process with threads cannot be forked safely, and a sandbox may not start threads.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}


def start_process(control_fd: int, life_fd: int) -> subprocess.Popen[bytes]:
    """Start a zygote.

    Args:
        control_fd: its end of the connection, with a `start_message`.
        life_fd: the reading end of the pipe by which it ends with the node, see `lifetime`.

    Raises:
        OSError: there is no room for a process or a descriptor.
    """
    return subprocess.Popen(
        [sys.executable, "-s", "-P", "-B", "-X", "utf8", "-c", _BOOT, str(control_fd)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(control_fd, life_fd),
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )


def start_message(settings: wire.ZygoteSettings) -> bytes:
    """Write what a zygote reads first.

    It is not on the command line, which all users of the machine and the sandboxes can read.
    """
    path = [os.path.abspath(entry) for entry in sys.path]
    return msgspec.json.encode({"path": path} | msgspec.to_builtins(settings))
