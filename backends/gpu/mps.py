"""A private MPS daemon: the workers of one NVIDIA device really run at the same time.

Without NVIDIA's Multi-Process Service processes take turns on a device. The daemon is the node's
own: its folders are private, it is a child of the node and ends with it, and no setting of the
device is changed, so a daemon of another user is not disturbed.

Under MPS a fault of one client ends the work of all clients of that daemon. The node knows that as
`Sharing.shared_fault_domain` and runs what merely shared the device again.

Source: NVIDIA's documentation of the Multi-Process Service.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dandelion.driver import DeviceSharing, Sharing

from .options import GpuOptions

CONTROL = "nvidia-cuda-mps-control"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_START_LIMIT_S = 5.0
_STOP_LIMIT_S = 3.0
# The child asks to be killed with its parent before it becomes the daemon.
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)


class MpsDaemon:
    """One daemon, for the workers of one device.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dandelion-mps-"))
        pipes, logs = self.folder / "pipe", self.folder / "log"
        pipes.mkdir()
        logs.mkdir()
        self.variables = {
            "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
        }
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start(pipes / "control")
        except OSError:
            self.close()
            raise

    def _start(self, control: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TIED, CONTROL, "-f"],
            env={**_inherited(), **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + _START_LIMIT_S
        while not control.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise OSError(f"{CONTROL} did not come up")
            time.sleep(0.01)

    def close(self) -> None:
        """Ask the daemon to quit, make sure, and remove its folders. May be called twice."""
        if self._process is not None:
            if self._process.poll() is None:
                self._quit()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _quit(self) -> None:
        assert self._process is not None
        try:
            subprocess.run(
                [CONTROL],
                input=b"quit -t 1\n",
                env={**_inherited(), **self.variables},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_STOP_LIMIT_S,
                check=False,
            )
            self._process.wait(_STOP_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


class MpsSharing(DeviceSharing):
    """Shares each NVIDIA device by a daemon of its own."""

    def __init__(self, options: GpuOptions) -> None:
        self._options = options

    def share(self, resource: str) -> Sharing:
        return share_by_mps(self._options.worker_percentage())


def share_by_mps(percentage: str) -> Sharing:
    """Prepare that processes share a device: by MPS if that can be had, else they take turns.

    Args:
        percentage: of the compute units that each worker may use; empty for all.
    """
    if shutil.which(CONTROL) is None:
        return Sharing(description=f"processes that take turns: there is no {CONTROL}")
    try:
        daemon = MpsDaemon()
    except OSError as error:
        return Sharing(description=f"processes that take turns: {error}")
    limit = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percentage} if percentage else {}
    return Sharing(
        {**daemon.variables, **limit, **_renumbered(os.environ.get(VISIBLE, ""))},
        concurrent=True,
        shared_fault_domain=True,
        description="concurrent by MPS" + (f", {percentage} % each" if percentage else ""),
        close=daemon.close,
    )


def _renumbered(visible: str) -> dict[str, str]:
    """Return what a client needs if this process sees certain devices only.

    The server of MPS sees the same ones. It numbers them anew, from 0, and clients choose among
    those. Devices that are named by their UUIDs have the same names everywhere.

    Args:
        visible: numbers or UUIDs with commas; the first that is neither ends the list.
    """
    entries = [entry.strip() for entry in visible.split(",")]
    numbers = list(itertools.takewhile(str.isdecimal, entries))
    return {VISIBLE: ",".join(str(i) for i in range(len(numbers)))} if numbers else {}


def _inherited() -> dict[str, str]:
    """The environment without the MPS of other programs."""
    return {k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS_")}
