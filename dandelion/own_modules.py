"""Modules that a function brings along, as a finder and loader of compiled code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class OwnModule:
    """A module of a function: its code, its file name in tracebacks, whether it is a package."""

    code: CodeType
    filename: str
    is_package: bool


class OwnModules:
    """Finds and loads these modules; for the start of ``sys.meta_path``.

    Args:
        modules: by name.
    """

    def __init__(self, modules: Mapping[str, OwnModule]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Describe a module; None if it is another one."""
        found = self._modules.get(fullname)
        if found is None:
            return None
        loader: Any = self  # sandboxes do not have the class that is declared for loaders
        return ModuleSpec(fullname, loader, origin=found.filename, is_package=found.is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Have Python make the module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Execute the code of a module in it."""
        found = self._modules[module.__name__]
        module.__file__ = found.filename
        exec(found.code, module.__dict__)
