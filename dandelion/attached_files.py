"""Files that were attached to a Python function: ``dd.files["stopwords.txt"]`` gives bytes.

A sandbox has no file system. The files are a static set of the function, and are available during
its calls, in sandboxes as well as in plain calls for tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from dandelion.data import Bytes

_NONE: Mapping[str, Bytes] = MappingProxyType({})
_current: ContextVar[Mapping[str, Bytes]] = ContextVar("attached", default=_NONE)


class AttachedFiles(Mapping[str, bytes]):
    """The files of the function that runs, by name."""

    def __getitem__(self, name: str) -> bytes:
        found = _current.get()
        if name not in found:
            known = ", ".join(found) or "none"
            raise KeyError(f"no file '{name}' is attached to the function; there are: {known}")
        return bytes(found[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_current.get())

    def __len__(self) -> int:
        return len(_current.get())


files = AttachedFiles()


@contextmanager
def attached(given: Mapping[str, Bytes]) -> Iterator[None]:
    """Make these files those of the function that runs."""
    token = _current.set(given)
    try:
        yield
    finally:
        _current.reset(token)
