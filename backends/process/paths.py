"""Hiding the host's file paths from functions.

An interpreter stores its folders, and the file of every module and function. A sandbox can open
none of them, but their names disclose users, projects and how a node was set up. So the zygote,
after its imports, makes all of these names relative to the folder that the module was found in:
``/srv/node/lib/python3.12/json/decoder.py`` becomes ``json/decoder.py``. All names change in the
same way, so code that compares them still works.

This is not a security boundary: freed memory may still contain such a name, and so does the table
of interned strings since Python 3.14. A function can read all memory of its process.
"""

from __future__ import annotations

import _imp
import gc
import linecache
import operator
import os
import pwd
import site
import sys
import types
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

_DEPTH = 6
_PLAIN = frozenset(
    {
        *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type),
        *(types.NoneType, bool, int, float, bytes),
    }
)
_rename: Callable[[types.CodeType, str], None] = vars(_imp)["_fix_co_filename"]
_INTERPRETER = ("executable", "_base_executable")
_PREFIXES = ("prefix", "base_prefix", "exec_prefix", "base_exec_prefix", "_stdlib_dir", "_home")


class HostPaths:
    """The folders of this interpreter, read from it before `hide` removes them."""

    __slots__ = ("_folders", "_known", "_seen")  # no attributes that `hide` could change

    def __init__(self) -> None:
        executables = (getattr(sys, name, None) for name in _INTERPRETER)
        folders = {os.path.dirname(name) for name in executables if name}
        folders.update(sys.path, (getattr(sys, name, None) for name in _PREFIXES))
        folders |= {os.path.dirname(os.__file__), site.USER_BASE, site.USER_SITE, _home()}
        known = {os.path.abspath(folder) for folder in folders if folder}
        known |= {os.path.realpath(folder) for folder in known}
        self._folders = sorted(known - {"/"}, key=len, reverse=True)
        self._known: dict[str, str] = {}
        self._seen: set[int] = set()

    def shown(self, path: str) -> str:
        """Return a path as functions see it."""
        for folder in self._folders:
            if path.startswith(folder):
                if path == folder:
                    return ""
                if path[len(folder)] == "/":
                    return path[len(folder) + 1 :]
        return path

    def cleaned(self, text: str) -> str:
        """Return a text with all paths as functions see them."""
        for folder in self._folders:
            text = text.replace(f"{folder}/", "")
        return text

    def hide(self) -> None:
        """Remove the host's paths from everything that the interpreter has loaded."""
        sys.argv[:] = sys.orig_argv[:] = [""]
        for name in _INTERPRETER:
            setattr(sys, name, "")
        linecache.cache.clear()
        for module in list(sys.modules.values()):
            self._hide_in_object(module, 0)
        for value in gc.get_objects():
            if isinstance(value, types.FunctionType):
                self._hide_in_function(value)
            elif type(value) is dict and type(value.get("__file__")) is str:
                value["__file__"] = self.shown(value["__file__"])  # copies of modules' dicts

    def _hide_in_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        name = code.co_filename
        shown = self._known.get(name)
        if shown is None:
            shown = self._known[name] = self.shown(name)
        _rename(code, shown)
        if function.__defaults__:
            defaults = self._replaced(function.__defaults__, 0)
            if defaults is not function.__defaults__:
                function.__defaults__ = defaults

    def _hide_in(self, container: dict[Any, Any] | list[Any], depth: int) -> None:
        """Replace the paths in a container and in its members."""
        if id(container) in self._seen or depth > _DEPTH:
            return
        self._seen.add(id(container))
        pairs = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in list(pairs):
            replaced = self._replaced(value, depth + 1)
            if replaced is not value:
                container[key] = replaced

    def _replaced(self, value: Any, depth: int) -> Any:
        """Return the replacement of a path; other values are changed in place and returned."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is str:
            return self.shown(value) if value.startswith("/") else value
        if kind is tuple:
            parts = [self._replaced(part, depth) for part in value]
            same = all(map(operator.is_, parts, value))
            return value if same else tuple(parts)
        if kind is dict or kind is list:
            self._hide_in(value, depth)
        elif isinstance(value, PurePath):
            return kind(self.shown(str(value)))
        elif not isinstance(value, type | types.ModuleType):
            self._hide_in_object(value, depth)
        return value

    def _hide_in_object(self, value: object, depth: int) -> None:
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        if type(attributes) is dict:
            self._hide_in(attributes, depth)


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""
