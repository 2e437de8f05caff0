"""Lines of `logging` in a sandbox: what is written directly is what the library would write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from dandelion.backends.process import streams

ROOT = Path(__file__).parent.parent

PLAIN = {
    "no handler": "logging.getLogger('app').warning('a %s %d', 'b', 2)",
    "no handler, below its level": "logging.getLogger('app').info('hidden')",
    "all levels": """
        logging.basicConfig(level=logging.DEBUG)
        for level in (1, 10, 15, 20, 30, 40, 50, 60):
            logging.getLogger('a.b').log(level, 'at %s', level)
        """,
    "first use of the module": "logging.error('no configuration'); logging.info('hidden')",
    "disabled": "logging.disable(); logging.critical('hidden')",
    "names of levels": "logging.addLevelName(35, 'LOUD'); logging.log(35, 'x')",
    "not a text": "logging.warning([1, 2]); logging.warning(None)",
    "wide": "logging.warning('\\ud800 \\u20ac %s', '\\u00e9')",
    "percent without arguments": "logging.warning('100 %')",
    "a number": "logging.warning('%5.2f', 2.5)",
}
"""What is written directly."""

FORMED = {
    "wrong arguments": "logging.raiseExceptions = False; logging.warning('%d', 'x')",
    "a dict": "logging.warning('%(a)s', {'a': 1})",
    "empty dict": "logging.warning('%s', {})",
    "own format": "logging.basicConfig(format='%(funcName)s %(lineno)d %(message)s'); log()",
    "own handler": """
        logging.getLogger('app').addHandler(logging.StreamHandler(sys.stdout))
        logging.getLogger('app').warning('once'); logging.warning('twice')
        """,
    "filter of the logger": """
        logging.getLogger('app').addFilter(lambda record: record.levelno > 30)
        logging.getLogger('app').warning('hidden'); logging.getLogger('app').error('shown')
        """,
    "filter of the handler": """
        logging.basicConfig()
        logging.root.handlers[0].addFilter(lambda record: 'x' in record.msg)
        logging.warning('y'); logging.warning('x')
        """,
    "level of the handler": """
        logging.basicConfig(level=10); logging.root.handlers[0].setLevel(40)
        logging.warning('hidden'); logging.error('shown')
        """,
    "format of the handler": """
        logging.basicConfig()
        logging.root.handlers[0].setFormatter(logging.Formatter('%(lineno)d %(message)s'))
        log()
        """,
    "stream of the handler": """
        logging.basicConfig(); logging.root.handlers[0].setStream(sys.stdout)
        logging.warning('elsewhere')
        """,
    "stream of the process": """
        with contextlib.redirect_stderr(sys.stdout):
            logging.getLogger('app').warning('elsewhere'); logging.warning('there, too')
        """,
    "does not propagate": """
        logging.basicConfig(); logging.getLogger('app').propagate = False
        logging.getLogger('app.part').warning('to the last resort')
        """,
    "no last resort": "logging.lastResort = None; logging.getLogger('app').warning('none')",
    "own record": """
        class Loud(logging.LogRecord):
            def getMessage(self): return super().getMessage().upper()
        logging.setLogRecordFactory(Loud); log()
        """,
    "own logger": """
        class Own(logging.Logger):
            def makeRecord(self, *a, **k): print('made'); return super().makeRecord(*a, **k)
        logging.setLoggerClass(Own); logging.getLogger('own').warning('x')
        """,
    "replaced method": """
        logging.Logger.handle = lambda self, record: print('handled', record.msg); log()
        """,
    "exception": """
        try: 1 / 0
        except ZeroDivisionError: logging.exception('failed')
        """,
    "stack": "logging.warning('x', stack_info=True)",
    "extra": "logging.basicConfig(format='%(a)s'); logging.warning('x', extra={'a': 5})",
    "caller above": "logging.basicConfig(format='%(funcName)s'); outer()",
    "disabled logger": """
        logging.getLogger('app').disabled = True; logging.getLogger('app').error('hidden')
        """,
    "forced": """
        logging.warning('a'); logging.basicConfig(force=True, format='%(message)s'); log()
        logging.root.handlers.clear(); logging.warning('b')
        """,
    "wrong level": """
        try: logging.basicConfig(level='NONE')
        except ValueError as error: print(error)
        logging.warning('x')
        """,
    "wrong option": """
        try: logging.basicConfig(levle=1)
        except ValueError as error: print(error)
        """,
}
"""What takes the library's way in part."""

_RUN = """
import contextlib, logging, os, sys, textwrap
import msgspec
from dandelion.backends.process import streams

cases = msgspec.json.decode(sys.argv[1], type=dict[str, str])
streams.prepare()
found = {}
log = streams._log
for name, text in cases.items():
    for how in ("library", "direct"):
        source, sink = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(sink, 1), os.dup2(sink, 2)
            if how == "library":
                logging.Logger._log, logging.basicConfig = streams._log, streams._basic_config
            else:
                streams._log = lambda *a: os.write(sink, b"\\0L") and log(*a[:-1], a[-1] + 1)
            def outer(): inner()
            def inner(): logging.warning("x", stacklevel=2)
            scope = {**globals(), "outer": outer}
            code = "def log(): logging.warning('from here')\\n" + textwrap.dedent(text)
            exec(compile(code, "<case>", "exec"), scope)
            os._exit(0)
        os.close(sink)
        with open(source, "rb") as reader:
            found[f"{how} {name}"] = reader.read()
        assert os.waitpid(pid, 0)[1] == 0, (name, found)
os.write(int(sys.argv[2]), msgspec.msgpack.encode(found))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    cases = msgspec.json.encode(PLAIN | FORMED).decode()
    path = tmp_path_factory.mktemp("lines") / "found"
    with path.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", _RUN, cases, str(file.fileno())],
            pass_fds=(file.fileno(),), check=True, timeout=60, cwd=ROOT,
        )  # fmt: skip
    return msgspec.msgpack.decode(path.read_bytes(), type=dict[str, bytes])


@pytest.mark.parametrize("name", PLAIN)
def test_plain_lines_are_written_directly(name: str, written: dict[str, bytes]) -> None:
    assert written[f"direct {name}"] == written[f"library {name}"]
    hidden = "hidden" in PLAIN[name] and "first" not in name
    assert bool(written[f"direct {name}"]) is not hidden


@pytest.mark.parametrize("name", FORMED)
def test_other_lines_are_the_library_s(name: str, written: dict[str, bytes]) -> None:
    assert written[f"direct {name}"].replace(b"\0L", b"") == written[f"library {name}"]


def test_the_library_is_asked_only_where_it_must_be(written: dict[str, bytes]) -> None:
    asked = [name for name in FORMED if b"\0L" in written[f"direct {name}"]]
    assert {"a dict", "own format", "own record", "exception", "stack", "extra"} <= set(asked)
    assert streams._log.__module__ == "logging"
