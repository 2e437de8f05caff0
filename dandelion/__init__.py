"""Dandelion: a dataflow composition engine for untrusted functions.

A checkout runs without an install: the folders ``backends/``, ``registry/`` and ``compositions/``
lie beside this package in the tree and inside it in a wheel. In a checkout the parent folder is
appended to ``__path__``, so that ``dandelion.backends`` is found in both, also in spawned children.
"""

from pathlib import Path

if not (Path(__file__).parent / "backends").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

__version__ = "0.1.0"
