"""Open PoCL's device in a process that is forked afterwards: its threads start in the forks.

PoCL starts the threads of its device when the device is opened, and a fork has none of them. What
it calls then is ``pthread_create`` for each, and ``pthread_barrier_wait`` until all are there.
`Postponed` has it call functions of ours that only note what was wanted; `Postponed.begin` does it.
A program can be built meanwhile, but nothing can be launched.

Source: ``pthread_create(3)``, ``pthread_barrier_wait(3)``.
"""

from __future__ import annotations

import ctypes
import errno
import os

from . import symbol_tables

_Create = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_Wait = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Postponed:
    """The threads that PoCL wanted to start since `install`."""

    def __init__(self) -> None:
        self._places: list[tuple[int, int]] = []
        self._threads: list[tuple[int, int, int]] = []
        self._barriers: list[int] = []
        self._create = _Create(self._note_thread)
        self._wait = _Wait(self._note_barrier)

    def install(self) -> bool:
        """Have PoCL call this; False if it does not start threads in the way that is known."""
        functions = {
            b"pthread_create": ctypes.cast(self._create, ctypes.c_void_p).value or 0,
            b"pthread_barrier_wait": ctypes.cast(self._wait, ctypes.c_void_p).value or 0,
        }
        replaced = symbol_tables.replace(functions)
        self._places = [place for places in replaced.values() for place in places]
        if replaced.keys() != functions.keys():
            self._restore()
            return False
        return True

    def _note_thread(self, thread: int, attributes: int | None, run: int, argument: int) -> int:
        if attributes:  # they may be gone when the thread is started
            return errno.EAGAIN
        self._threads.append((thread, run, argument))
        return 0

    def _note_barrier(self, barrier: int) -> int:
        self._barriers.append(barrier)
        return 0

    def _restore(self) -> None:
        for place, before in self._places:
            symbol_tables.write_word(place, before)
        self._places = []

    def begin(self) -> None:
        """Start the threads, and wait as PoCL would have; later ones are started as always.

        Raises:
            OSError: a thread cannot be started.
        """
        self._restore()
        libc = ctypes.CDLL(None)
        create = _Create(ctypes.cast(libc.pthread_create, ctypes.c_void_p).value or 0)
        wait = _Wait(ctypes.cast(libc.pthread_barrier_wait, ctypes.c_void_p).value or 0)
        for thread, run, argument in self._threads:
            error = create(thread, None, run, argument)
            if error:
                raise OSError(error, os.strerror(error))
        for barrier in self._barriers:
            wait(barrier)
