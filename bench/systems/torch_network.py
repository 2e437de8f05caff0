"""PyPlover's network in PyTorch, the same for all peers that serve it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from dandelion.compositions.digits import bundle as digits


class Network:
    """The network on the first NVIDIA GPU, or on the processor.

    Called with an image [8, 8] float32, it gives 10 logits. Weights are those of the composition
    `digits`; they are on the device beforehand.
    """

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")  # its names exist once it is loaded
        self.device = "cuda" if self._torch.cuda.is_available() else "cpu"
        self._weights = {
            name: self._torch.from_numpy(np.array(tensor)).to(self.device)
            for name, tensor in digits.weights().items()
        }

    def __call__(self, body: bytes) -> bytes:
        torch, w = self._torch, self._weights
        functional = torch.nn.functional
        with torch.inference_mode():
            image = torch.frombuffer(bytearray(body), dtype=torch.float32).to(self.device)
            filters = w["conv_weights"].unsqueeze(1)
            maps = functional.conv2d(
                image.view(1, 1, 8, 8), filters, w["conv_bias"], padding=filters.shape[-1] // 2
            )
            pooled = functional.max_pool2d(torch.relu(maps), 2).flatten(1)
            hidden = torch.relu(functional.linear(pooled, w["hidden_weights"], w["hidden_bias"]))
            logits = functional.linear(hidden, w["output_weights"], w["output_bias"])
            data: bytes = logits.cpu().numpy().tobytes()
        return data
