"""The node's side of the process that prepares packages."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

import msgspec

from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    DandelionError,
    InternalError,
    InvalidFunction,
    Overloaded,
    Problem,
)
from dandelion.packages.records import PrepareAnswer, PrepareJob
from dandelion.search_path import small_environment

_ANSWER_BYTES = 4 << 20
_LOOK_S = 0.2
_PROCESSES = threading.BoundedSemaphore(2)
JOBS_LIMIT = 4
"""Jobs that run or wait for a process; more are refused, since each holds a thread of the node."""

_places = threading.BoundedSemaphore(JOBS_LIMIT)


def run_job(job: PrepareJob, stopped: threading.Event) -> PrepareAnswer:
    """Have a process do a job.

    Args:
        job: what to do.
        stopped: set when the node closes; the process is killed then.

    Raises:
        Cancelled: it was stopped.
        Overloaded: too many jobs run or wait.
        InvalidFunction: the requirements cannot be fulfilled, or that takes more than the limits.
        BackendUnavailable: the index cannot be reached, a file cannot be read or written, or the
            process was killed from outside.
        InternalError: the process failed.
        OSError: the disk is full.
    """
    if not _places.acquire(blocking=False):
        raise Overloaded(JOBS_LIMIT, JOBS_LIMIT, "preparations of packages")
    try:
        answer = _answer(job, stopped)
    finally:
        _places.release()
    if answer.problems:
        raise InvalidFunction(answer.problems)
    if answer.disk_error:
        raise OSError(answer.disk_error, os.strerror(answer.disk_error))
    if answer.unavailable:
        raise BackendUnavailable("packages", answer.unavailable, "try again, or ask the operator")
    return answer


def _answer(job: PrepareJob, stopped: threading.Event) -> PrepareAnswer:
    with _PROCESSES, open(os.memfd_create("packages"), "w+b") as output:
        code = _ran(job, output.fileno(), stopped)
        if code:
            raise _death(job, code)
        output.seek(0)
        try:
            return msgspec.msgpack.decode(output.read(_ANSWER_BYTES), type=PrepareAnswer)
        except msgspec.DecodeError as error:
            raise InternalError(f"preparing packages gave no answer: {error}") from None


def _ran(job: PrepareJob, output: int, stopped: threading.Event) -> int:
    """Run the process to its end; return its exit code."""
    with open(os.memfd_create("job"), "w+b") as order:
        order.write(msgspec.msgpack.encode(job))
        order.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-s", "-P", "-B", "-m", "dandelion.packages.prepare_process"],
            stdin=order,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=small_environment(),
            start_new_session=True,
        )
    late = True
    try:
        late = not _ended(child.pid, job.limits.wall_s, stopped)
    finally:
        if late:
            child.kill()
        child.wait()
    return -signal.SIGXCPU if late else child.returncode


def _ended(process: int, limit_s: float, stopped: threading.Event) -> bool:
    """Wait for the end of a child, without reaping it. False if it takes longer.

    Raises:
        Cancelled: it was stopped.
    """
    end = time.monotonic() + limit_s
    descriptor = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while (left_s := end - time.monotonic()) > 0:
            if poll.poll(min(left_s, _LOOK_S) * 1e3):
                return True
            if stopped.is_set():
                raise Cancelled("the node is closed")
        return False
    finally:
        os.close(descriptor)


def _death(job: PrepareJob, code: int) -> DandelionError:
    if code > 0:
        return InternalError(f"the process that prepares packages ended with code {code}")
    limits = job.limits
    if code == -signal.SIGXCPU:
        message = "preparing the packages takes too long"
        limit = f"at most {limits.cpu_s} s of CPU time and {limits.wall_s:g} s in total"
        return InvalidFunction((Problem("too-much-time", message, expected=limit),))
    if code == -signal.SIGKILL:  # its limits end it in other ways
        remedy = "try again; perhaps the machine is out of memory"
        return BackendUnavailable("packages", "the process that prepares them was killed", remedy)
    message = f"preparing the packages ended by signal {-code}"
    return InvalidFunction((Problem("prepare-failed", message),))
