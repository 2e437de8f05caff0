"""Functions from kernels and models of other systems; an offline tool, see ``docs/triton.md``.

A node needs none of it: what is made here are ordinary documents. Triton is imported when a
function is made, and not before.
"""

from dandelion.export.triton_arguments import Pointer
from dandelion.export.triton_document import triton_function

__all__ = ["Pointer", "triton_function"]
