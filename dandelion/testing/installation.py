"""Installing drivers of a test as backends, so that settings can name them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from dandelion.driver import Driver

_METADATA = "Metadata-Version: 2.1\nName: dandelion-test-backends\nVersion: 1.0\n"


@contextmanager
def installed(folder: Path, *drivers: Driver) -> Iterator[None]:
    """Have `load_driver` give these drivers by their names, through entry points.

    For this process only. An engine process does not find them; see `FakeEngineProcess`.

    Args:
        folder: an empty one; it is put in front of the search path.
        drivers: each is given to all that load it.
    """
    facts = folder / "dandelion_test_backends-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(_METADATA)
    lines = ["[dandelion.backends]"]
    modules = {}
    for driver in drivers:
        module = ModuleType(f"dandelion_test_backend_{driver.name}")
        module.__dict__["driver"] = lambda driver=driver: driver
        modules[module.__name__] = module
        lines.append(f"{driver.name} = {module.__name__}")
    (facts / "entry_points.txt").write_text("\n".join(lines))
    sys.modules.update(modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in modules:
            del sys.modules[name]
