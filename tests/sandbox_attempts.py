"""What a hostile function tries."""

from __future__ import annotations

from typing import Any

import pytest
from dandelion.backends.process.engine import ProcessEngine

from dandelion.errors import (
    DandelionError,
    FunctionError,
)

from .python_functions import function, run

ECHO = function("def f(x):\n    return x\n")


def attempt(engine: ProcessEngine, source: str, **limits: Any) -> DandelionError:
    """Run hostile code and give the error that it ends with."""
    with pytest.raises(FunctionError) as caught:
        run(engine, function(source, **limits), b"x")
    return caught.value
