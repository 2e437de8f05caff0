"""Which modules a sandbox has, and what becomes of an import of any other.

A sandbox has no file system, so everything is imported before it is locked: the modules listed here
and the function's declared ones. Modules that come along with those are there, too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import BuiltinImporter, ModuleSpec
from types import ModuleType

_ALWAYS = """
    __future__ _strptime abc array ast base64 binascii bisect calendar cmath codecs collections
    collections.abc colorsys contextlib copy csv ctypes dataclasses datetime decimal difflib enum
    errno fractions functools gc hashlib heapq hmac html html.parser inspect io ipaddress itertools
    json keyword linecache locale marshal math numbers operator os os.path pathlib pickle pprint
    queue quopri random re reprlib secrets shlex signal statistics string stringprep struct sys
    textwrap threading time timeit token tokenize traceback types typing unicodedata urllib.parse
    uuid warnings weakref xml.etree.ElementTree zlib
    encodings.ascii encodings.latin_1 encodings.utf_8 encodings.utf_8_sig encodings.utf_16
    encodings.utf_16_le encodings.utf_16_be encodings.utf_32 encodings.cp1252 encodings.idna
    encodings.punycode encodings.unicode_escape encodings.raw_unicode_escape
    encodings.base64_codec encodings.hex_codec
    numpy dandelion.data dandelion.backends.process.examine
    """

ALWAYS = tuple(_ALWAYS.split())
"""What every sandbox has. `dandelion.data` needs numpy, so that is among them."""

_LAZY = {
    "numpy": (
        "numpy.fft",
        "numpy.lib.stride_tricks",
        "numpy.linalg",
        "numpy.ma",
        "numpy.polynomial",
        "numpy.random",
    )
}
"""Parts that a package loads only when they are first used."""


def declared(options: str) -> tuple[str, ...]:
    """Read ``options["imports"]``: module names with commas between; sorted, each once."""
    return tuple(sorted({name.strip() for name in options.split(",")} - {""}))


def load(imports: Iterable[str]) -> None:
    """Import everything that a sandbox with these declared imports has.

    Raises:
        Exception: whatever importing a declared module raises.
    """
    for name in (*ALWAYS, *imports):
        importlib.import_module(name)
        for part in _LAZY.get(name, ()) if name in imports else ():
            importlib.import_module(part)


class Closed:
    """The finder of a sandbox: says how to get a module that is not there."""

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        spec = BuiltinImporter.find_spec(fullname, path, target)
        if spec is not None:
            return spec
        raise ModuleNotFoundError(
            f"module '{fullname}' is not loaded in the sandbox; "
            f"declare it with the function: imports=['{fullname}']",
            name=fullname,
        )


def close() -> None:
    """Let no import look for files any more."""
    sys.meta_path[:] = [Closed]
    sys.path.clear()
    sys.path_importer_cache.clear()
