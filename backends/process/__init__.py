"""Python compute functions, each call in a locked child process that is used once.

Processes, and the modules that implement them::

    node ── ProcessEngine (a thread)          engine, watch, outcome
     │          │  call, outputs by file or message: wire
     │          ▼
     └── zygote ──fork──> sandboxes           zygote, sandbox; on the node's side
                                               sandbox_pool, zygote_start, handle

`dandelion.confinement` confines a sandbox; `modules` defines what it can import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cores import ProcessDriver

# Imported in the functions: zygotes import this package too, and need no code of the node's side.


def driver() -> ProcessDriver:
    """Make the driver of this backend."""
    from .cores import ProcessDriver

    return ProcessDriver()


def enforcement() -> dict[str, str]:
    """Report what confines a function on this machine; see `dandelion.backends.process.cores`."""
    from .cores import enforcement as enforced

    return enforced()
