"""Installing drivers and protocols of a test, so that settings can name them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from dandelion.driver import Driver

_METADATA = "Metadata-Version: 2.1\nName: dandelion-test-backends\nVersion: 1.0\n"


@contextmanager
def installed(folder: Path, *drivers: Driver, **protocols: Callable[..., object]) -> Iterator[None]:
    """Have drivers and protocols found by their names, through entry points.

    For this process only. An engine process does not find them; see `FakeEngineProcess`.

    Args:
        folder: an empty one; it is put in front of the search path.
        drivers: each is given to all that load it.
        protocols: for each name the function ``adapter`` of its module.
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
    lines.append("[dandelion.protocols]")
    for name, adapter in protocols.items():
        module = ModuleType(f"dandelion_test_protocol_{name}")
        module.__dict__["adapter"] = adapter
        modules[module.__name__] = module
        lines.append(f"{name} = {module.__name__}")
    (facts / "entry_points.txt").write_text("\n".join(lines))
    sys.modules.update(modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in modules:
            del sys.modules[name]
