"""A function learns no paths of the host from its interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.sandbox_pool import PLAIN

from dandelion.errors import Raised
from tests.python_functions import first, function, process_engine, run

ROOT = str(Path(__file__).parent.parent)


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


def host_paths() -> set[str]:
    """Folders of this machine that a function must not see."""
    folders = {sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), ROOT, *sys.path}
    folders |= {os.path.realpath(folder) for folder in folders} | {str(Path.home())}
    return {folder for folder in folders if folder.count("/") > 1 or folder == str(Path.home())}


WALK = """
import gc, os, sys, types
def f(x):
    # Reversed, so that they are not found in what this function itself holds.
    secrets = x.text().splitlines()
    gc.unfreeze()
    frames = []
    frame = sys._getframe()
    while frame:
        frames.append(frame.f_locals)
        frame = frame.f_back
    left = [sys.modules, vars(sys), os.environ, os.environb, frames, *gc.get_objects()]
    del frames, frame
    seen = set()
    found = set()
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str):
            if any(secret in value[::-1] for secret in secrets):
                found.add(value[:200])
        elif type(value) is not dict or any(a is not b for a, b in value.items()):
            left += gc.get_referents(value)  # of all but the table of interned strings
            if isinstance(value, types.CodeType):
                left.append(value.co_filename)
    assert len(seen) > 50_000
    return "\\n".join(sorted(found))
"""


@pytest.mark.parametrize("imports", ["", "email, PIL.Image, sqlite3, xml.sax"])
def test_nothing_that_the_interpreter_holds_shows_a_path(
    engine: ProcessEngine, imports: str
) -> None:
    secrets = "\n".join(folder[::-1] for folder in sorted(host_paths()))
    assert first(run(engine, function(WALK, imports=imports), secrets)).text() == ""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sys.argv, sys.orig_argv", "([''], [''])"),
        ("sys.executable, sys.prefix, sys.base_prefix, sys.path", "('', '', '', [])"),
        ("json.__file__, json.__spec__.origin", "('json/__init__.py', 'json/__init__.py')"),
        ("numpy.__path__", "['numpy']"),
        ("json.loads.__code__.co_filename", "json/__init__.py"),
        ("inspect.getfile(numpy)", "numpy/__init__.py"),
        ("dict(os.environ)", "{'TZ': 'UTC0'}"),
        ("linecache.cache", "{}"),
    ],
)
def test_what_is_shown_instead(engine: ProcessEngine, expression: str, expected: str) -> None:
    fn = function(
        f"""
        import inspect, json, linecache, numpy, os, sys
        def f(x):
            return str(({expression}))
        """
    )
    assert first(run(engine, fn, b"")).text() == expected


def test_tracebacks_and_logs_have_no_paths(engine: ProcessEngine) -> None:
    fn = function(
        """
        import json, logging, sys, traceback, warnings
        def f(x):
            logging.basicConfig(format="%(pathname)s %(message)s", stream=sys.stdout)
            logging.warning("heard")  # the library searches the stack for its own file
            warnings.warn("look")
            try:
                json.loads("{")
            except ValueError:
                print(traceback.format_exc())
            raise ValueError
        """
    )
    with pytest.raises(Raised) as caught:
        run(engine, fn, b"")
    printed = caught.value.stderr
    assert "<function probe> heard" in printed
    assert 'File "json/decoder.py"' in printed
    assert not [folder for folder in host_paths() if folder in printed]


def test_reasons_why_an_import_fails_have_no_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"module_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("raise OSError(f'cannot load {__file__}')")
    monkeypatch.syspath_prepend(tmp_path)
    with process_engine() as engine, pytest.raises(Raised) as caught:
        run(engine, function("def f(x): pass", imports=name), b"")
    assert f"cannot load {name}.py" in str(caught.value)


def test_the_command_line_of_a_zygote_has_no_paths_but_its_program(engine: ProcessEngine) -> None:
    with engine._pools.use(PLAIN) as pool:
        words = Path(f"/proc/{pool.pid()}/cmdline").read_text().split("\0")
    assert words[0] == sys.executable
    assert not [word for word in words[1:] if "/" in word]
