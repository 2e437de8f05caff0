"""Functions from kernels and models of other systems; an offline tool.

A node needs none of it: what is made here are ordinary documents. Triton, torch and tinygrad are
imported when a function is made, and not before. See ``docs/triton.md`` and ``docs/torch.md``.
"""

from dandelion.export.onnx_binding import onnx_module
from dandelion.export.report import ExportReport
from dandelion.export.torch_document import ExportedModule, export_module, torch_function
from dandelion.export.triton_arguments import Pointer
from dandelion.export.triton_document import triton_function

__all__ = [
    "ExportReport",
    "ExportedModule",
    "Pointer",
    "export_module",
    "onnx_module",
    "torch_function",
    "triton_function",
]
