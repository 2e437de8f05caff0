"""A program: PyPlover's network in PyTorch behind LitServe, with one worker and JSON.

Its argument is the port; SIGTERM ends it. The class has its own module, since LitServe sends it to
its worker by name.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

from .torch_network import Network

_ls: Any = importlib.import_module("litserve")  # its names exist once it is loaded


class LitServeApi(_ls.LitAPI):  # type: ignore[misc]  # a class of what was just imported
    """The network, as LitServe calls it."""

    def setup(self, device: str) -> None:
        """Load the network, in the worker."""
        self.network = Network()

    def decode_request(self, request: dict[str, list[float]]) -> bytes:
        """Read the image [8, 8] of a request."""
        return np.array(request["image"], np.float32).tobytes()

    def predict(self, body: bytes) -> bytes:
        """Run the network."""
        return self.network(body)

    def encode_response(self, reply: bytes) -> dict[str, list[float]]:
        """Write the logits [10]."""
        return {"logits": np.frombuffer(reply, np.float32).tolist()}


def main(port: str) -> None:
    """Serve until a signal comes."""
    server = _ls.LitServer(LitServeApi(), accelerator="auto", devices=1, workers_per_device=1)
    server.run(host="127.0.0.1", port=int(port), log_level="error", generate_client_file=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
