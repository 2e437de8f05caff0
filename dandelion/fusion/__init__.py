"""GPU functions of a composition that follow each other become one function.

A call of it runs the launches of all of them, and what they pass on stays in the device's buffer
pool: it is neither copied to the host nor sent back. To engines and to the scheduler such a
function is like any other; its blueprint is made of theirs (`blueprints`). `groups` decides which
applications are run together. A call that fails is run function by function, so the error names the
function at fault; see `dandelion.dispatcher.walk`.
"""

from dandelion.fusion.functions import FORMAT, Fused, Loaded, fused
from dandelion.fusion.wholes import Found, Whole, whole

__all__ = ["FORMAT", "Found", "Fused", "Loaded", "Whole", "fused", "whole"]
