"""Runs GPU functions of registered compositions together, see `dandelion.fusion`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import msgspec

from dandelion.blueprint import parse_blueprint
from dandelion.blueprint.uses import with_access
from dandelion.catalog import Catalog
from dandelion.dataflow.graph import Composition
from dandelion.errors import DandelionError
from dandelion.function import CodeObject, FunctionSpec, FusedFunction, digest_of
from dandelion.fusion import FORMAT, Found, Fused, Loaded, fused

_KEPT = 256
_Found = TypeVar("_Found")


class _Kept(OrderedDict[object, _Found]):
    """What was made last, by what it was made of. Safe from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def find(self, key: object, make: Callable[[], _Found]) -> _Found:
        """Give what was made, or make it."""
        with self._lock:
            if key in self:
                self.move_to_end(key)
                return self[key]
        made = make()
        with self._lock:
            self[key] = made
            if len(self) > _KEPT:
                self.popitem(last=False)
        return made


class Fuser:
    """Joins functions, and keeps the results. Safe from any thread.

    Args:
        catalog: with their blobs.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._loaded: _Kept[Loaded] = _Kept()
        self._fused: _Kept[Fused | None] = _Kept()

    def fuse(self, composition: Composition, find: Callable[[str], Found]) -> Fused | None:
        """Join GPU functions of a composition.

        Args:
            composition: valid.
            find: gives the function of a name, or that of a composition which is one; else None.

        Returns:
            None if there is nothing to join, or code cannot be read now: calls of its function tell
            why.
        """
        specs = [find(application.function) for application in composition.applications]
        key = digest_of(msgspec.msgpack.encode((composition, specs), order="sorted"))
        try:
            return self._fused.find(key, lambda: fused(composition, find, self._load))
        except DandelionError:
            return None

    def _load(self, spec: FunctionSpec) -> Loaded | None:
        code = next((code for code in spec.code if code.format == FORMAT), None)
        if code is None or code.options:
            return None
        if isinstance(spec, FusedFunction):
            return Loaded(code, parse_blueprint(spec.blueprint))
        key = (code.main, tuple(code.files.items()))
        return self._loaded.find(key, lambda: self._read(code))

    def _read(self, code: CodeObject) -> Loaded:
        files = {name: self._catalog.blob(digest) for name, digest in code.files.items()}
        main = bytes(self._catalog.blob(code.main))
        return Loaded(code, with_access(parse_blueprint(main, files), files))
