"""Reads requirements, and names the environment that fulfils them. Uses the library packaging.

Source: the specifications "Dependency specifiers" and "Version specifiers" of packaging.python.org.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

from dandelion.errors import BackendUnavailable, InvalidFunction, Problem
from dandelion.errors.misfits import named_type
from dandelion.function import Digest, digest_of

COUNT_LIMIT = 64
LENGTH_LIMIT = 300
WHEELS_LIMIT = 512
PROVIDED = ("ml-dtypes", "msgspec", "numpy")
"""Distributions that every sandbox has from the node. A set may have others of them."""

FIXED = frozenset({"msgspec"})
"""Those of which it may have no other."""

_REMEDY = "pip install 'dandelion-engine[packages]'"
_WHEEL = re.compile(r"[A-Za-z0-9_.]+(?:-[A-Za-z0-9_.!+]+){4,5}\.whl\Z")
_FILES = (".whl", ".zip", ".tar.gz")
_PLACE = re.compile(r"^\s*(?:\.|/|~|[A-Za-z]:\\|[a-z+]+://|git\+|file:)")


def require_installed() -> None:
    """Look for the libraries that resolve requirements.

    Raises:
        BackendUnavailable: one is not installed.
    """
    for name in ("packaging", "resolvelib"):
        if importlib.util.find_spec(name) is None:
            raise BackendUnavailable("packages", f"{name} is not installed", _REMEDY)


def read_requirements(texts: Iterable[str], where: str) -> tuple[str, ...]:
    """Check requirements; return them in canonical form, sorted, each once.

    Args:
        texts: such as ``scipy>=1.13`` or ``httpx[http2]; python_version < "3.14"``.
        where: the place for problems.

    Raises:
        InvalidFunction: all that is wrong: the form of one, one that names a place instead of a
            package, or too many.
        BackendUnavailable: the library is not installed.
    """
    require_installed()
    given = tuple(texts)
    if len(given) > COUNT_LIMIT:
        expected, found = f"at most {COUNT_LIMIT}", str(len(given))
        problem = Problem("too-many-packages", "too many packages", where, 0, 0, expected, found)
        raise InvalidFunction((problem,))
    read = [_requirement(text, f"{where}[{at}]") for at, text in enumerate(given)]
    problems = tuple(one for one in read if isinstance(one, Problem))
    if problems:
        raise InvalidFunction(problems)
    return tuple(sorted({one for one in read if isinstance(one, str)}))


def _requirement(text: object, where: str) -> str | Problem:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    if not isinstance(text, str):
        message = f"{named_type(text)} is not a requirement"
        return Problem("bad-requirement", message, where, expected="a text such as 'scipy>=1.13'")
    shown = repr(text if len(text) <= 80 else f"{text[:80]}...")
    if len(text) > LENGTH_LIMIT or not text.isprintable():
        message = f"{shown} is not a requirement"
        expected = f"at most {LENGTH_LIMIT} characters, all of which can be printed"
        return Problem("bad-requirement", message, where, expected=expected)
    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        if _PLACE.search(text):
            return _not_by_place(shown, where)
        reason = str(error).partition("\n")[0]
        message = f"{shown} is not a requirement: {reason}"
        return Problem("bad-requirement", message, where, expected="such as 'scipy>=1.13'")
    if found.url is not None or found.name.endswith(_FILES):
        return _not_by_place(shown, where)
    found.name = canonicalize_name(found.name)
    return str(found)


def _not_by_place(shown: str, where: str) -> Problem:
    message = f"{shown} names a file or an address; packages are named by name and version"
    expected = "a wheel in the operator's folder or index, such as 'scipy>=1.13'"
    return Problem("not-by-place", message, where, expected=expected)


def check_wheels(wheels: Mapping[str, str], where: str) -> None:
    """Check the form of wheels that a document names.

    Raises:
        InvalidFunction: a name is not a wheel's, a digest is not one, or there are too many.
    """
    if len(wheels) > WHEELS_LIMIT:
        expected, found = f"at most {WHEELS_LIMIT}", str(len(wheels))
        problem = Problem("too-many-packages", "too many wheels", where, 0, 0, expected, found)
        raise InvalidFunction((problem,))
    for name, digest in wheels.items():
        if len(name) > LENGTH_LIMIT or not _WHEEL.match(name):
            message = f"{name[:LENGTH_LIMIT]!r} is not the file name of a wheel"
            raise InvalidFunction((Problem("bad-wheel", message, where),))
        if not re.fullmatch("[0-9a-f]{64}", digest):
            message = f"{digest[:80]!r} is not a SHA-256 in lower-case hexadecimal"
            raise InvalidFunction((Problem("bad-wheel", message, f"{where}.{name}"),))


@cache
def provided() -> dict[str, str]:
    """Return the versions of the distributions that every sandbox has."""
    return {name: importlib.metadata.version(name) for name in PROVIDED}


def are_provided(requirements: Iterable[str]) -> bool:
    """Tell whether all of these are about distributions that every sandbox has."""
    from packaging.requirements import Requirement

    return all(Requirement(one).name in PROVIDED for one in requirements)


def environment_key(wheels: Mapping[str, Digest]) -> str:
    """Name the environment that has these wheels, on this interpreter.

    It also depends on what the node itself has, since an environment was resolved against that.
    """
    interpreter = (sys.implementation.cache_tag, sysconfig.get_platform())
    content = (interpreter, sorted(provided().items()), sorted(wheels.items()))
    return digest_of(msgspec.msgpack.encode(content))[:40]
