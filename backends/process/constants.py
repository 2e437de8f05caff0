"""Static sets of functions in memory files, which all their sandboxes map.

Copied for each call they would take 0.4 ms and more for each MiB. A file is sealed against writing.
Each call gets a file description of its own, open for reading only, and its sandbox closes it as
soon as it is mapped: position and times of a file that a call could see or change would tell it of
other calls. (A package of the function's own can prevent that, when its zygote imports it; then
calls of that function can see when others began.)
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dandelion.data import ItemSet
from dandelion.function import Digest, Function

from . import wire

LEAST_BYTES = 32 * 1024
"""Less is copied to each call, which takes less time than mapping."""
KEPT_BYTES = 512 << 20
"""Files of more are made anew when they are needed, those that were used longest ago first."""
KEPT_FILES = 64
"""Likewise: each takes a descriptor of the process."""


@dataclass(frozen=True, slots=True)
class Constants:
    """The static sets of a function, kept or open for one call.

    Attributes:
        file: with their items, one after the other, aligned as in a parcel.
        size_bytes: of the file.
        positions: of the sets.
    """

    file: int
    size_bytes: int
    positions: tuple[int, ...]

    def left(self, inputs: Iterable[ItemSet | None]) -> list[ItemSet | None]:
        """Give the inputs of a call without the sets that lie in the file."""
        return [None if i in self.positions else item_set for i, item_set in enumerate(inputs)]


class ConstantFiles:
    """Keeps the files of the functions that were used last. Safe from any thread.

    Args:
        kept_bytes: of all files; the one used last is kept in any case.
        kept_files: how many.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES, kept_files: int = KEPT_FILES) -> None:
        self._kept_bytes = kept_bytes
        self._kept_files = kept_files
        self._files: OrderedDict[Digest, Constants] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()
        self._making = threading.Lock()

    @contextmanager
    def of(self, function: Function) -> Iterator[Constants | None]:
        """Yield the constants of a function, open for one call.

        It is None if they are to be copied: they are small, or there can be no file.
        """
        found = None
        if function.static and _size(function) >= LEAST_BYTES:
            try:
                found = self._opened(function.identity) or self._made(function)
            except OSError:  # perhaps there are too many: make room
                self.close()
        try:
            yield found
        finally:
            if found is not None:
                os.close(found.file)

    def _opened(self, identity: Digest) -> Constants | None:
        with self._lock:
            kept = self._files.get(identity)
            if kept is None:
                return None
            self._files.move_to_end(identity)
            return _opened(kept)

    def _made(self, function: Function) -> Constants:
        with self._making:  # calls that come together need one file
            return self._opened(function.identity) or self._make(function)

    def _make(self, function: Function) -> Constants:
        names = function.spec.input_names
        positions = tuple(i for i, name in enumerate(names) if name in function.static)
        parts = wire.item_parts(function.static[names[i]] for i in positions)
        size_bytes = sum(map(len, parts))
        kept = Constants(wire.sealed_file("dandelion-static", parts), size_bytes, positions)
        with self._lock:
            self._files[function.identity] = kept
            self._size_bytes += size_bytes
            while len(self._files) > 1 and self._is_too_much():
                self._drop(next(iter(self._files)))
            return _opened(kept)

    def _is_too_much(self) -> bool:
        return self._size_bytes > self._kept_bytes or len(self._files) > self._kept_files

    def forget(self, function: Function) -> None:
        """Drop the file of a function; calls that run keep it."""
        with self._lock:
            self._drop(function.identity)

    def _drop(self, identity: Digest) -> None:
        dropped = self._files.pop(identity, None)
        if dropped is not None:
            self._size_bytes -= dropped.size_bytes
            os.close(dropped.file)

    def close(self) -> None:
        """Drop all files. It may be used again."""
        with self._lock:
            for identity in list(self._files):
                self._drop(identity)


def _size(function: Function) -> int:
    return sum(item.size_bytes for s in function.static.values() for item in s.items)


def _opened(kept: Constants) -> Constants:
    """Open the file of kept constants for one call."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    return replace(kept, file=os.open(f"/proc/self/fd/{kept.file}", flags))
