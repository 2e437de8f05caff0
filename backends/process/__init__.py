"""Python compute functions, each call in a locked child process that is used once.

Who is who::

    node ── ProcessEngine (a thread)          engine, watch, outcome
     │          │  call, outputs by file or message: wire
     │          ▼
     └── zygote ──fork──> sandboxes           nursery, handle (node's side), zygote, sandbox

What confines a sandbox is in `dandelion.confinement`; what it may import in `modules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cores import ProcessDriver

# Imported in the functions, since zygotes live in this package and stay small without the node's
# side.


def driver() -> ProcessDriver:
    """Make the driver of this backend."""
    from .cores import ProcessDriver

    return ProcessDriver()


def enforcement() -> dict[str, str]:
    """Tell what confines a function on this machine; see `dandelion.backends.process.cores`."""
    from .cores import enforcement as enforced

    return enforced()
