"""Compiled functions, so that a sandbox need not compile on every call.

Compiling runs none of the user's code; the result is data that only sandboxes ever load.
"""

from __future__ import annotations

import marshal
import threading
from collections import OrderedDict

import msgspec

from dandelion.errors import Raised
from dandelion.function import Digest, Function

from . import wire
from .outcome import filename


class Programs:
    """Keeps the most recently used programs, encoded for the wire. Safe from any thread.

    Args:
        limit: how many.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._encoded: OrderedDict[Digest, msgspec.Raw] = OrderedDict()
        self._lock = threading.Lock()

    def encoded(self, function: Function) -> msgspec.Raw:
        """Give the program of a function.

        Raises:
            Raised: its code does not compile; registration should have found that.
        """
        with self._lock:
            found = self._encoded.get(function.identity)
            if found is not None:
                self._encoded.move_to_end(function.identity)
                return found
        made = msgspec.Raw(msgspec.msgpack.encode(_compiled(function)))
        with self._lock:
            self._encoded[function.identity] = made
            while len(self._encoded) > self._limit:
                self._encoded.popitem(last=False)
        return made

    def forget(self, identity: Digest) -> None:
        """Drop the program of a function."""
        with self._lock:
            self._encoded.pop(identity, None)


def _compiled(function: Function) -> wire.Program:
    spec = function.spec
    try:
        code = compile(bytes(function.main), filename(function), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Raised(spec.name, f"{type(error).__name__}: {error}") from None
    entry = function.code.options.get("entry", spec.name)
    return wire.Program(filename(function), entry, marshal.dumps(code), spec.inputs, spec.outputs)
