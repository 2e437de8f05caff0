"""Modules of PyTorch for tests of the route `peak`, which needs one version of it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("triton", reason="the extra 'export' is not installed")

import torch
from torch import nn

from dandelion.export import inductor_binding

HAS_INDUCTOR = str(torch.__version__).startswith(f"{inductor_binding.VERSION}.")
inductor = pytest.mark.skipif(not HAS_INDUCTOR, reason="this torch is not the supported one")


class Calls(nn.Module):
    """A module that calls a function, with layers of its own."""

    def __init__(self, call: Any, *layers: nn.Module) -> None:
        super().__init__()
        self.call, self.layers = call, nn.ModuleList(layers)

    def forward(self, *given: Any) -> Any:
        return self.call(*self.layers, *given)


def heads(x: Any, count: int) -> Any:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)
