"""Which modules a sandbox has, and how an import of any other module fails.

A sandbox has no file system, so everything is imported before it is locked: the modules listed here
and the function's declared ones. Modules that these import are available too, but this is not
guaranteed.

Many packages import submodules, or read files, only when they are first used. Three things help:
`_LATE` lists the late imports of widely used modules; a declaration ``package.*`` means a package
with all modules directly in it; and the error of a failed import says what to declare. Tried and
dropped: importing whatever the functions of a declared package import in their bodies. For large
packages that takes half a minute and tens of megabytes.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from importlib.machinery import BuiltinImporter, ModuleSpec
from types import ModuleType
from typing import ClassVar

_ALWAYS = """
    __future__ _strptime abc array ast base64 binascii bisect builtins calendar cmath codecs
    collections collections.abc colorsys contextlib contextvars copy copyreg csv ctypes dataclasses
    datetime decimal difflib dis enum errno fcntl fnmatch fractions functools gc genericpath
    graphlib gzip hashlib heapq hmac html html.entities html.parser importlib importlib.machinery
    importlib.util inspect io ipaddress itertools json json.decoder json.encoder json.scanner
    keyword linecache locale logging marshal math mmap ntpath numbers opcode operator os
    os.path pathlib pickle platform posixpath pprint queue quopri random re reprlib resource
    secrets select selectors shlex signal socket stat statistics string stringprep struct sys
    textwrap threading time timeit token tokenize traceback types typing unicodedata urllib.parse
    uuid warnings weakref xml.etree.ElementPath xml.etree.ElementTree zipimport zlib
    encodings encodings.aliases
    encodings.ascii encodings.latin_1 encodings.utf_8 encodings.utf_8_sig encodings.utf_16
    encodings.utf_16_le encodings.utf_16_be encodings.utf_32 encodings.cp1252 encodings.idna
    encodings.punycode encodings.unicode_escape encodings.raw_unicode_escape
    encodings.base64_codec encodings.hex_codec
    numpy numpy.dtypes numpy.exceptions numpy.lib numpy.lib.format numpy.lib.mixins
    numpy.lib.stride_tricks numpy.linalg numpy.typing numpy.version ml_dtypes msgspec
    dandelion.data dandelion.call_values dandelion.attached_files dandelion.backends.process.examine
    """

_SINCE_314 = ("ctypes._layout", "string.templatelib")
"""What `ctypes` imports for the first structure, and the types of template strings."""

ALWAYS = (*_ALWAYS.split(), *(_SINCE_314 if sys.version_info >= (3, 14) else ()))
"""Modules of every sandbox. `dandelion.data` needs numpy and ml_dtypes, so they are included.

These are used often and cost little; every sandbox is a copy of them. The whole standard library,
without I/O, would make the interpreter half as large again.
"""

_ABSENT_TEXT = """
    ctypes._aix ctypes.macholib ctypes.test ctypes.util ctypes.wintypes importlib.abc
    importlib.metadata importlib.readers importlib.resources importlib.simple json.__main__
    json.tool logging.config logging.handlers pathlib._local pathlib.types urllib.error
    urllib.request urllib.response urllib.robotparser xml.dom xml.etree.ElementInclude
    xml.etree.cElementTree xml.parsers xml.sax
    """

_ABSENT = frozenset(_ABSENT_TEXT.split())
"""Modules that are missing though their packages are loaded, for ``from package import module``."""

_loaded_data: list[object] = []  # referenced here, so that it need not be read again


def _load_image_formats() -> None:
    importlib.import_module("PIL.Image").init()


def _load_time_zones() -> None:
    """Load all zones; the library finds them by name as long as they are referenced."""
    zoneinfo = importlib.import_module("zoneinfo")
    names = zoneinfo.available_timezones()
    _loaded_data.extend(map(zoneinfo.ZoneInfo, sorted(names)))
    vars(zoneinfo)["available_timezones"] = names.copy  # the library's own lists folders


def _seed_database() -> None:
    """Have the library read its random seed from a file."""
    with closing(importlib.import_module("sqlite3").connect(":memory:")) as database:
        database.execute("select random()")


_LATE: dict[str, tuple[str | Callable[[], None], ...]] = {
    "PIL.Image": (
        *("PIL.BmpImagePlugin", "PIL.GifImagePlugin", "PIL.IcoImagePlugin"),
        *("PIL.JpegImagePlugin", "PIL.PngImagePlugin", "PIL.PpmImagePlugin"),
        *("PIL.TiffImagePlugin", "PIL.WebPImagePlugin", _load_image_formats),
    ),
    "PIL.ImageDraw": ("PIL.ImageFont",),
    "argparse": ("gettext", "shutil"),
    "email": ("email.*", "email.mime.*"),
    "numpy": ("numpy.fft", "numpy.ma", "numpy.polynomial", "numpy.random"),
    "pandas": ("pandas.io.formats.*", "pandas.io.json.*", "pandas.io.parsers.*"),
    "pydantic": ("pydantic.*",),
    "sqlite3": (_seed_database,),
    "tarfile": ("bz2", "gzip", "lzma"),
    "xml.dom": ("xml.dom.*",),
    "xml.sax": ("xml.sax.*",),
    "zipfile": ("encodings.cp437",),
    "zoneinfo": ("importlib.resources", _load_time_zones),
}
"""What modules load on first use, by module: names of modules, and functions that read files."""


def declared(options: str) -> tuple[str, ...]:
    """Read ``options["imports"]``: module names with commas between; sorted, each once."""
    return tuple(sorted({name.strip() for name in options.split(",")} - {""}))


def load(imports: Iterable[str]) -> None:
    """Import all modules of a sandbox with these declared imports.

    Raises:
        Exception: importing a declared module raised it.
    """
    for name in ALWAYS:
        importlib.import_module(name)
    before = set(sys.modules)
    for name in imports:
        _load(name)
    late = set(_LATE)
    while wanted := {
        n for n in late & sys.modules.keys() if n not in before or _within(n, imports)
    }:
        late -= wanted
        for part in (part for name in sorted(wanted) for part in _LATE[name]):
            if isinstance(part, str):
                with suppress(ImportError):  # another release of the package may not have it
                    _load(part)
            else:
                part()


def _load(name: str) -> None:
    package = name.removesuffix(".*")
    module = importlib.import_module(package)
    if package == name:
        return
    if not hasattr(module, "__path__"):
        raise ImportError(f"'{package}' is a module, not a package")
    for found in pkgutil.iter_modules(module.__path__, f"{package}."):
        if not found.name.endswith((".__main__", ".conftest", ".tests", ".test")):
            with suppress(Exception, SystemExit):  # its own imports may not be installed
                importlib.import_module(found.name)


def missing(imported: str, members: Iterable[str], imports: Iterable[str]) -> Iterator[str]:
    """Yield the modules that an import statement needs and a sandbox may not have.

    Args:
        imported: the module that is named after ``import``, or after ``from``.
        members: names imported from it; attributes or modules, which cannot be told apart here.
        imports: what the function declares.
    """
    imports = tuple(imports)
    if not _provided(imported, imports):
        yield imported
        return
    for member in members:
        name = f"{imported}.{member}"
        if name in _ABSENT and not _provided(name, imports):
            yield name


def _provided(name: str, imports: tuple[str, ...]) -> bool:
    if name in sys.builtin_module_names or _within(name, ALWAYS):
        return True
    late = (part for key, parts in _LATE.items() if _within(key, imports) for part in parts)
    return _within(name, (*imports, *(part for part in late if isinstance(part, str))))


def always_has(name: str) -> bool:
    """Tell whether every sandbox has a module, without a declaration."""
    return _provided(name, ())


def _within(name: str, imports: Iterable[str]) -> bool:
    """Tell whether a module is loaded with these: it is one of them, or a parent package of one."""
    return any(
        name == one or one.startswith(f"{name}.") or f"{name.rpartition('.')[0]}.*" == one
        for one in imports
    )


class Closed:
    """The finder of a sandbox: its error says how to declare a missing module.

    Attributes:
        refused: the last missing module.
    """

    refused: ClassVar[str] = ""

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
        cls.refused = fullname
        raise ModuleNotFoundError(_advice(fullname), name=fullname)


def _advice(name: str) -> str:
    package = name.rpartition(".")[0]
    further = f", or imports=['{package}.*'] for all of '{package}'" if package else ""
    return (
        f"module '{name}' is not loaded in the sandbox; "
        f"declare it with the function: imports=['{name}']{further}"
    )


def advice(error: BaseException, text: str) -> str:
    """Return what to declare, for errors in which Python drops the message of `Closed`.

    These are ``from package import part``, where Python reports a missing name, and an encoding
    whose module cannot be imported, which Python reports as unknown.

    Args:
        error: what the function raised.
        text: its text; ``str()`` of the error is the user's code, which may raise.
    """
    package, _, part = Closed.refused.rpartition(".")
    if (
        isinstance(error, ImportError)
        and error.name == package
        and text.startswith(f"cannot import name '{part}'")
    ) or (package == "encodings" and text.startswith("unknown encoding")):
        return _advice(Closed.refused)
    return ""


def close() -> None:
    """Stop all imports from looking for files."""
    sys.meta_path[:] = [Closed]
    sys.path.clear()
    sys.path_importer_cache.clear()
