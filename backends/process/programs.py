"""Compiled functions, so that a sandbox need not compile on every call.

The node compiles nothing and loads none of the code: it comes from a sandbox (see `.checker`), and
for the node it is a string of bytes, which only sandboxes of that same function ever load.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from dandelion.data import SetSpec
from dandelion.function import Digest, Function

from . import wire
from .outcome import filename

KEPT_BYTES = 64 * 1024 * 1024

_Key: TypeAlias = tuple[Digest, str, str, tuple[SetSpec, ...], tuple[SetSpec, ...]]


class Programs:
    """Keeps the most recently used programs, encoded for the wire. Safe from any thread.

    Args:
        compile_source: gives the marshalled code of a function before a time on
            `time.monotonic_ns`.
        kept_bytes: how much may be kept.
    """

    def __init__(
        self, compile_source: Callable[[Function, int], bytes], kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._compile = compile_source
        self._kept_bytes = kept_bytes
        self._encoded: OrderedDict[_Key, msgspec.Raw] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def encoded(self, function: Function, deadline_ns: int) -> msgspec.Raw:
        """Give the program of a function.

        Raises:
            Exception: whatever compiling raises.
        """
        key = _key(function)
        with self._lock:
            found = self._encoded.get(key)
            if found is not None:
                self._encoded.move_to_end(key)
                return found
        return self.add(function, self._compile(function, deadline_ns))

    def add(self, function: Function, code: bytes) -> msgspec.Raw:
        """Keep the code of a function that was compiled already; gives its program."""
        spec = function.spec
        program = wire.Program(
            filename(function), _entry(function), code, spec.inputs, spec.outputs
        )
        made = msgspec.Raw(msgspec.msgpack.encode(program))
        with self._lock:
            self._drop(_key(function))
            self._encoded[_key(function)] = made
            self._size_bytes += len(made)
            while self._size_bytes > self._kept_bytes and len(self._encoded) > 1:
                self._drop(next(iter(self._encoded)))
        return made

    def forget(self, function: Function) -> None:
        """Drop the program of a function."""
        with self._lock:
            self._drop(_key(function))

    def _drop(self, key: _Key) -> None:
        dropped = self._encoded.pop(key, None)
        if dropped is not None:
            self._size_bytes -= len(dropped)


def _entry(function: Function) -> str:
    return function.code.options.get("entry", function.spec.name)


def _key(function: Function) -> _Key:
    """All that a program depends on. Version and limits are not, so a check can fill the cache."""
    spec = function.spec
    return function.code.main, spec.name, _entry(function), spec.inputs, spec.outputs
