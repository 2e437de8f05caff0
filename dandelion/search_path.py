"""The environment of child processes: where they find the engine, and threads of numpy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the package."""


def search_path() -> str:
    """Return ``PYTHONPATH`` for a program that imports the engine; keeps the current value."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(path for path in given if path and path != str(ROOT))])


_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "PYTHONHOME", "PYTHONHASHSEED")
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def small_environment() -> dict[str, str]:
    """Return the environment of a program that will run code of users.

    It has nothing of this process but what finds libraries, and numpy starts no threads there.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": search_path()}


def environment(further: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment, with `further` variables, for such a program."""
    return {**os.environ, **(further or {}), "PYTHONPATH": search_path()}


def one_blas_thread() -> dict[str, str]:
    """Return variables for a program that loads numpy and does not compute with its BLAS.

    Each thread of OpenBLAS uses a core for 100 ms before it first sleeps. A number of threads that
    is set stays.
    """
    name = _ONE_THREAD[0]
    return {} if name in os.environ else {name: "1"}


@contextlib.contextmanager
def loaded_without_threads() -> Iterator[None]:
    """If numpy is loaded meanwhile, it has one thread; child processes have as many as before."""
    further = one_blas_thread()
    os.environ.update(further)
    try:
        yield
    finally:
        for name in further:
            del os.environ[name]
