"""Peers for the question of what a dispatcher costs, each only if it is installed.

Every peer runs the same no-op step, in a chain (each step gets the result of the one before) and as
a fan-out (independent steps, whose results are all waited for), called by one thread in this
process, as our node is. Each is used in the way that its documentation says is fastest for tiny
steps:

- *Dask threads*: a graph for the threaded scheduler, one thread for each core.
- *Ray actors*: references passed from call to call of one actor; a fan-out over one actor for each
  core.
- *Ray compiled graph*: the graph compiled once, on one actor, which passes values on at once; and
  across two actors, where every step is a hop through shared memory.
- *Triton*: an ensemble of the no-op step in its backend for Python, over one kept connection; its
  users are clients, so the request over HTTP is part of each call.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ..records import Skip
from . import names
from .triton import FAILURES, TritonEnsembles
from .triton_install import missing_triton

Action = Callable[[], object]
COMPILED_LIMIT = 100
"""Steps of a compiled graph; beyond it, compiling takes longer than everything that is measured."""
_SHARED = Path("/dev/shm")
_END_S = 5.0  # for Ray's processes to end
_SLOW = "takes seconds to start: leave out --quick"


def no_op(value: bytes) -> bytes:
    """Return the argument: the step that all systems run."""
    return value


class StepRunner(Protocol):
    """Runs no-op steps."""

    name: str

    def chain(self, length: int) -> Action | None:
        """Give a call that runs so many steps one after the other; None if it cannot."""

    def fan(self, width: int) -> Action | None:
        """Give a call that runs so many independent steps; None if it cannot."""

    def close(self) -> None:
        """End what was started."""


class DaskThreads:
    """Dask's threaded scheduler."""

    name = names.DASK

    def __init__(self) -> None:
        self._get = importlib.import_module("dask.threaded").get
        self._workers = len(os.sched_getaffinity(0))

    def chain(self, length: int) -> Action:
        graph: dict[str, object] = {"s0": b"x"}
        graph |= {f"s{i + 1}": (no_op, f"s{i}") for i in range(length)}
        return lambda: self._get(graph, f"s{length}", num_workers=self._workers)

    def fan(self, width: int) -> Action:
        graph = {f"s{i}": (no_op, b"x") for i in range(width)}
        return lambda: self._get(graph, list(graph), num_workers=self._workers)

    def close(self) -> None:
        pass


def _actor(ray: Any) -> Any:  # a binding whose names exist once it is loaded
    class Step:  # local, since Ray then sends the class itself, and no worker imports this module
        def step(self, value: bytes) -> bytes:
            return value

    return ray.remote(num_cpus=0)(Step).remote()


class RayActors:
    """One actor for each core."""

    name = names.RAY_ACTORS

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.actors = [_actor(ray) for _ in os.sched_getaffinity(0)]
        ray.get([actor.step.remote(b"x") for actor in self.actors])

    def chain(self, length: int) -> Action:
        def call() -> object:
            value: object = b"x"
            for _ in range(length):
                value = self.actors[0].step.remote(value)
            return self._ray.get(value)

        return call

    def fan(self, width: int) -> Action:
        actors = [self.actors[i % len(self.actors)] for i in range(width)]
        return lambda: self._ray.get([actor.step.remote(b"x") for actor in actors])

    def close(self) -> None:
        pass


class RayCompiled:
    """Ray's compiled graphs, with all steps on one actor, or on two actors in turns (`across`)."""

    def __init__(self, ray: Any, across: bool) -> None:
        self.name = f"{names.RAY_GRAPH}, across actors" if across else names.RAY_GRAPH
        self._ray = ray
        self._dag = importlib.import_module("ray.dag")
        self._actors = [_actor(ray) for _ in range(2 if across else 1)]
        self._compiled: Any = None

    def chain(self, length: int) -> Action | None:
        if length > COMPILED_LIMIT:
            return None
        with self._dag.InputNode() as node:
            for i in range(length):
                node = self._step(i).bind(node)
        return self._call(node)

    def fan(self, width: int) -> Action | None:
        if width > COMPILED_LIMIT:
            return None
        with self._dag.InputNode() as given:
            nodes = [self._step(i).bind(given) for i in range(width)]
        return self._call(self._dag.MultiOutputNode(nodes))

    def _step(self, at: int) -> Any:
        return self._actors[at % len(self._actors)].step

    def _call(self, node: Any) -> Action:
        self.close()  # an actor is part of one compiled graph at a time
        self._compiled = compiled = node.experimental_compile()
        return lambda: self._ray.get(compiled.execute(b"x"))

    def close(self) -> None:
        if self._compiled is not None:
            self._compiled.teardown()
            self._compiled = None


@contextlib.contextmanager
def step_runners(quick: bool, skips: list[Skip]) -> Iterator[list[StepRunner]]:
    """Start the peers that are installed.

    Args:
        quick: leave out those that take seconds to start.
        skips: gets the reason for each that is missing.
    """
    found: list[StepRunner] = []
    with contextlib.ExitStack() as stack:
        if _installed("dask"):
            found.append(DaskThreads())
        else:
            skips.append(Skip(names.DASK, "not installed: pip install dask"))
        if not _installed("ray"):
            skips.append(Skip("Ray", "not installed: pip install ray"))
        elif quick:
            skips.append(Skip("Ray", _SLOW))
        else:
            found += stack.enter_context(_ray(skips))
        found += _triton(quick, skips)
        for runner in found:
            stack.callback(runner.close)
        yield found


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _triton(quick: bool, skips: list[Skip]) -> list[StepRunner]:
    reason = missing_triton() or (_SLOW if quick else "")
    if not reason:
        try:
            return [TritonEnsembles()]
        except FAILURES as error:
            reason = f"does not start here: {type(error).__name__}: {error}"[:300]
    skips.append(Skip(names.TRITON, reason))
    return []


def semaphores() -> set[Path]:
    """List the semaphores of Ray's compiled graphs; each is named after the process that made it.

    Ray's workers are killed at the end and leave them behind.
    """
    return {path for kind in ("hdr", "obj") for path in _SHARED.glob(f"sem.{kind}[0-9]*-*")}


def remove_semaphores(others: set[Path]) -> None:
    """Remove those that are not among `others`, once their processes have ended."""
    until = time.monotonic() + _END_S
    for path in semaphores() - others:
        process = Path("/proc", path.name.removeprefix("sem.")[3:].partition("-")[0])
        while process.exists() and time.monotonic() < until:
            time.sleep(0.02)
        if not process.exists():
            with contextlib.suppress(OSError):  # another user's
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _ray(skips: list[Skip]) -> Iterator[list[StepRunner]]:
    """Start Ray on this machine alone, with its own folder, which is removed afterwards."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets' paths must be short
    started: list[StepRunner] = []
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(remove_semaphores, semaphores())
        try:
            ray = importlib.import_module("ray")
            stack.callback(ray.shutdown)
            ray.init(num_cpus=len(os.sched_getaffinity(0)), include_dashboard=False,
                     log_to_driver=False, logging_level="ERROR", _temp_dir=folder)  # fmt: skip
            started = [RayActors(ray), RayCompiled(ray, False), RayCompiled(ray, True)]
        except Exception as error:  # it needs ports, shared memory and more
            reason = f"does not start here: {type(error).__name__}: {error}"
            skips.append(Skip("Ray", reason[:300]))
        yield started
