"""A cache of compiled functions, so that a sandbox need not compile on every call.

The node neither compiles nor loads the code. It comes from a sandbox (see `.examiner`) as bytes,
and only sandboxes of the same function load it.
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
from .sources import call_values, filename, program_files

CACHE_BYTES = 64 * 1024 * 1024

_Key: TypeAlias = tuple[
    Digest, str, str, str, tuple[tuple[str, Digest], ...], tuple[SetSpec, ...], tuple[SetSpec, ...]
]


class PythonPrograms:
    """Caches the most recently used programs, encoded for the wire. Safe from any thread.

    Args:
        compile_source: returns the marshalled code of a function, before a deadline on
            `time.monotonic_ns`.
        cache_bytes: size of the cache.
    """

    def __init__(
        self, compile_source: Callable[[Function, int], bytes], cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._compile = compile_source
        self._cache_bytes = cache_bytes
        self._encoded: OrderedDict[_Key, msgspec.Raw] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def encoded(self, function: Function, deadline_ns: int) -> msgspec.Raw:
        """Return the program of a function; compile it if it is not cached.

        Raises:
            Exception: compiling raised it.
        """
        key = _key(function)
        with self._lock:
            found = self._encoded.get(key)
            if found is not None:
                self._encoded.move_to_end(key)
                return found
        return self.add(function, self._compile(function, deadline_ns))

    def add(self, function: Function, code: bytes) -> msgspec.Raw:
        """Cache the code of a compiled function; return its program."""
        spec = function.spec
        values = call_values(function)
        if values is not None and not (values.inputs or values.outputs):
            values = None
        program = wire.PythonProgram(
            filename(function),
            _entry(function),
            code,
            spec.inputs,
            spec.outputs,
            program_files(function),
            values,
        )
        made = msgspec.Raw(msgspec.msgpack.encode(program))
        with self._lock:
            self._drop(_key(function))
            self._encoded[_key(function)] = made
            self._size_bytes += len(made)
            while self._size_bytes > self._cache_bytes and len(self._encoded) > 1:
                self._drop(next(iter(self._encoded)))
        return made

    def forget(self, function: Function) -> None:
        """Remove the program of a function."""
        with self._lock:
            self._drop(_key(function))

    def _drop(self, key: _Key) -> None:
        dropped = self._encoded.pop(key, None)
        if dropped is not None:
            self._size_bytes -= len(dropped)


def _entry(function: Function) -> str:
    return function.code.options.get("entry", function.spec.name)


def _key(function: Function) -> _Key:
    """Return all that a program depends on: not version or limits, so a check fills the cache."""
    spec, code = function.spec, function.code
    values = code.options.get("values", "")
    files = tuple(code.files.items())
    return code.main, spec.name, _entry(function), values, files, spec.inputs, spec.outputs
