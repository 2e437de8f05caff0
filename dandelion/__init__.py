"""Dandelion: a dataflow composition engine for untrusted functions.

The names below are what most programs need; they are loaded on first use, so that a process which
needs one layer of the engine does not load the others.

A checkout runs without an install: the folders ``backends/``, ``registry/``, ``compositions/`` and
``bench/`` lie beside this package in the tree and inside it in a wheel. In a checkout the parent
folder is appended to ``__path__``, so that ``dandelion.backends`` is found in both, also in spawned
children.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dandelion.attached_files import files as files
    from dandelion.blueprint import Blueprint as Blueprint
    from dandelion.blueprint import sizeof as sizeof
    from dandelion.data import Item as Item
    from dandelion.data import ItemSet as ItemSet
    from dandelion.dataflow.dsl import all_ as all_
    from dandelion.dataflow.dsl import any_each as any_each
    from dandelion.dataflow.dsl import any_keyed as any_keyed
    from dandelion.dataflow.dsl import composition as composition
    from dandelion.dataflow.dsl import each as each
    from dandelion.dataflow.dsl import functions as functions
    from dandelion.dataflow.dsl import http as http
    from dandelion.dataflow.dsl import join as join
    from dandelion.dataflow.dsl import keyed as keyed
    from dandelion.dataflow.dsl import optional as optional
    from dandelion.decorators import function as function
    from dandelion.documents import gpu_function as gpu_function
    from dandelion.documents import python_function as python_function
    from dandelion.errors import DandelionError as DandelionError
    from dandelion.export import torch_function as torch_function
    from dandelion.export import triton_function as triton_function
    from dandelion.frontend.async_client import AsyncClient as AsyncClient
    from dandelion.frontend.client import Client as Client
    from dandelion.function import Batching as Batching
    from dandelion.function import Limits as Limits
    from dandelion.json_values import text_key as text_key
    from dandelion.node import Node as Node
    from dandelion.settings import Settings as Settings
    from dandelion.settings import TenantSettings as TenantSettings

if not (Path(__file__).parent / "backends").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

__version__ = "0.1.0"

_HOMES = {
    "dandelion.blueprint": ("Blueprint", "sizeof"),
    "dandelion.attached_files": ("files",),
    "dandelion.data": ("Item", "ItemSet"),
    "dandelion.dataflow.dsl": (
        "all_",
        "any_each",
        "any_keyed",
        "composition",
        "each",
        "functions",
        "http",
        "join",
        "keyed",
        "optional",
    ),
    "dandelion.decorators": ("function",),
    "dandelion.documents": ("gpu_function", "python_function"),
    "dandelion.errors": ("DandelionError",),
    "dandelion.export": ("torch_function", "triton_function"),
    "dandelion.frontend.async_client": ("AsyncClient",),
    "dandelion.frontend.client": ("Client",),
    "dandelion.function": ("Batching", "Limits"),
    "dandelion.json_values": ("text_key",),
    "dandelion.node": ("Node",),
    "dandelion.settings": ("Settings", "TenantSettings"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_METHODS = ("attempts", "catch", "repeat")  # of what an application gives in a composition


class _Package(ModuleType):
    """This package; `function` is the decorator, also once the module of that name is loaded.

    Loading a module makes it an attribute of its package. The module with the records of functions
    is always imported by ``from dandelion.function import ...``, which does not read the attribute.
    """

    @property
    def function(self) -> Any:
        """The decorator of functions."""
        return importlib.import_module("dandelion.decorators").function

    @function.setter
    def function(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        hint = f"; write result.{name}(...) of an application's result" if name in _METHODS else ""
        raise AttributeError(f"module 'dandelion' has no attribute '{name}'{hint}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
