"""Errors in the form of the protocol: ``{"error": "..."}``."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dandelion.errors import DandelionError
from dandelion.frontend.asgi import JSON, Response
from dandelion.frontend.problem import RequestError
from dandelion.frontend.problem_response import problem_response

_json = msgspec.json.Encoder()


@dataclass(eq=False)
class Unsupported(RequestError):
    """A part of the protocol that this node does not have."""

    what: str
    hint: str
    status = 400

    def __str__(self) -> str:
        return f"{self.what}; {self.hint}"


def load_refused() -> Unsupported:
    """Make the error for loading and unloading a model."""
    return Unsupported(
        "models are not loaded and unloaded by clients",
        "register functions with POST /v1/register; their code is loaded when it is needed",
    )


def cuda_refused() -> Unsupported:
    """Make the error for CUDA shared memory."""
    return Unsupported("CUDA shared memory is not supported", "use system shared memory")


def kserve_problem(error: DandelionError, instance: str = "") -> Response:
    """Make the response for an error, with the same status and headers as on other routes."""
    response = problem_response(error, instance)
    text = str(error).encode("utf-8", "backslashreplace").decode()
    response.chunks, response.media_type = [_json.encode({"error": text})], JSON
    return response
