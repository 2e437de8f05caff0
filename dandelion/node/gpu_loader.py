"""Reads the blueprints of registered GPU functions."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dandelion.blueprint import parse_blueprint
from dandelion.blueprint.uses import with_access
from dandelion.catalog import Catalog
from dandelion.errors import DandelionError
from dandelion.function import CodeObject, Digest, FunctionSpec
from dandelion.fusion import FORMAT, Loaded

_KEPT = 256


class GpuLoader:
    """Reads blueprints, and keeps the last ones. Safe from any thread.

    Args:
        catalog: with their blobs.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept: OrderedDict[tuple[Digest, tuple[tuple[str, Digest], ...]], Loaded] = (
            OrderedDict()
        )
        self._lock = threading.Lock()

    def load(self, spec: FunctionSpec) -> Loaded | None:
        """Return the code of a GPU function; None if it is none, or cannot be read."""
        code = next((code for code in spec.code if code.format == FORMAT), None)
        if code is None or code.options:
            return None
        key = (code.main, tuple(code.files.items()))
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        try:
            made = self._read(code)
        except DandelionError:
            return None  # running the function by itself tells what is wrong
        with self._lock:
            self._kept[key] = made
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made

    def _read(self, code: CodeObject) -> Loaded:
        files = {name: self._catalog.blob(digest) for name, digest in code.files.items()}
        main = bytes(self._catalog.blob(code.main))
        return Loaded(code, with_access(parse_blueprint(main, files), files))
