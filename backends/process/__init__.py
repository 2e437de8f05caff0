"""Python compute functions, each call in a locked child process that is used once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cores import ProcessDriver


def driver() -> ProcessDriver:
    """Make the driver of this backend."""
    # Imported here, since a zygote lives in this package and stays small without the node's side.
    from .cores import ProcessDriver

    return ProcessDriver()
