"""Capturing a function: its source, and the source of what it uses, as text.

See `dandelion.capture.capture`. This runs in the user's program, when a function is registered.
Nothing here is used by a node.
"""

from dandelion.capture.capture import Captured, capture
from dandelion.capture.modules import Roles
from dandelion.capture.sources import place_of

__all__ = ["Captured", "Roles", "capture", "place_of"]
