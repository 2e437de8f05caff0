"""A reader of a page, who does with each snippet what the page says.

Each page has a folder, a namespace of Python, a shell whose folder and variables last from one
snippet to the next, and at most one command in a second terminal. All pages of a process share a
node at the address that the pages call ``127.0.0.1:8080``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import types
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from pathlib import Path

import msgspec

from dandelion.cli.parser import make_parser
from dandelion.cli.settings import load_settings
from dandelion.dataflow.language import parse
from dandelion.settings import Settings

from .snippets import Snippet, agrees, commands

_ADDRESS = re.compile(r"(127\.0\.0\.1|localhost):8080")
_CODE = re.compile(r"^(\$ |dandelion |import |from |def |class |curl )", re.MULTILINE)
_COMMAND_S = 60
_READY = re.compile(rb"http://127\.0\.0\.1:(\d+)\D")
_SERVE = "dandelion serve"
_SERVES = re.compile(rf"^{_SERVE}(?: [^\n]*\\\n)*[^\n]*$", re.MULTILINE)


class PageError(AssertionError):
    """A snippet does not do what its page says."""

    def __init__(self, page: str, snippet: Snippet, message: str) -> None:
        super().__init__(f"{page}:{snippet.line}: {message}")


class Reader:
    """Reads one page.

    Args:
        page: its name, for messages.
        folder: an empty folder.
        url: of the shared node.
        programs: a folder with the command `dandelion`; by default the installed one.
    """

    def __init__(self, page: str, folder: Path, url: str, programs: Path | None = None) -> None:
        self._page = page
        self._folder = folder / "work"
        self._folder.mkdir()
        self._state = folder / "state"
        self._state.write_text(f"cd '{self._folder}'\n")
        self._names: dict[str, object] = {"__name__": "page"}
        self._address = url.removeprefix("http://")
        self._shared = self._address
        self._second: subprocess.Popen[bytes] | None = None
        self._printed: str | None = None
        self._failed: PageError | None = None
        self._environment = _environment(folder, url)
        self._programs = f"{programs}{os.pathsep}" if programs else ""

    def read(self, snippet: Snippet) -> None:
        """Do what a snippet says.

        Raises:
            PageError: it fails, or prints something else.
        """
        if snippet.language != "text" or snippet.skipped:
            self.finish()
        self._failed = None
        try:
            if snippet.skipped:
                self._check(snippet)
            elif snippet.is_file:
                self._write(snippet)
            elif snippet.title == "second terminal":
                self._begin(snippet)
            else:
                self._do(snippet)
        except PageError:
            raise
        except Exception as error:
            raise PageError(self._page, snippet, f"{type(error).__name__}: {error}") from error

    def finish(self) -> None:
        """Refuse a command that failed and whose output the page does not show."""
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """End what runs in the second terminal."""
        if self._second is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._second.pid, signal.SIGINT)
            try:
                self._second.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._second.pid, signal.SIGKILL)
                self._second.wait()
            assert self._second.stdout is not None
            self._second.stdout.close()
            self._second = None

    def _do(self, snippet: Snippet) -> None:
        text = self._addressed(snippet.text)
        match snippet.language:
            case "python":
                self._printed = self._python(text, snippet.line)
            case "sh":
                self._printed = self._shell(text, snippet)
            case "console":
                for command, shown in commands(text):
                    printed = self._shell(command, snippet)
                    if shown.strip():
                        self._failed = None
                        self._compare(shown, printed, snippet)
                    self.finish()
            case "text":
                if self._printed is None:
                    raise PageError(self._page, snippet, "nothing was printed before it")
                self._compare(text, self._printed, snippet)
            case _:
                self._check(snippet)

    def _compare(self, shown: str, printed: str, snippet: Snippet) -> None:
        if not agrees(shown, printed):
            raise PageError(self._page, snippet, f"it shows\n{shown}\nand prints\n{printed}")

    def _write(self, snippet: Snippet) -> None:
        folder = Path(self._state.read_text().rpartition("cd '")[2].partition("'\n")[0])
        path = folder / snippet.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._addressed(snippet.text))
        self._check(snippet)

    def _python(self, text: str, line: int) -> str:
        path = (
            self._folder / f"line-{line}" / "program.py"
        )  # functions are captured from their file
        path.parent.mkdir()
        path.write_text(text)
        code = compile(text, str(path), "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self._folder):
            if code.co_flags & inspect.CO_COROUTINE:
                function = types.FunctionType(code, self._names)
                asyncio.run(function())
            else:
                exec(code, self._names)
        return printed.getvalue().replace(f"{path.parent}/", "")

    def _shell(self, text: str, snippet: Snippet) -> str:
        text = _SERVES.sub(_checked, text)
        script = f". '{self._state}'\n{text}\ncode=$?\n"
        script += f"{{ export -p; echo \"cd '$PWD'\"; }} > '{self._state}'; exit $code"
        process = subprocess.Popen(
            ["bash", "-c", script],
            env=self._environment | {"PATH": self._programs + self._environment["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                printed, _ = process.communicate(timeout=_COMMAND_S)
            finally:
                with contextlib.suppress(ProcessLookupError):  # it is still there if it hangs
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            message = f"exit code {process.returncode}\n{printed}"
            self._failed = PageError(self._page, snippet, message)
        return printed

    def _begin(self, snippet: Snippet) -> None:
        """Run a node in the second terminal; `dandelion serve` is the shared one."""
        self.close()
        command = snippet.text.strip()
        if command.splitlines()[-1] == _SERVE:
            self._call(self._shared)
            return
        path = shlex.quote(self._environment["PATH"])  # a process of its own, which can be ended
        script = f". '{self._state}'\nPATH={path}\n{command} --port 0"
        self._second = subprocess.Popen(
            ["bash", "-c", script],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        said = self._until_ready(self._second)
        ready = _READY.search(said)
        if ready is None:
            raise PageError(self._page, snippet, f"it did not start: {said.decode()}")
        self._call(f"127.0.0.1:{int(ready[1])}")

    def _call(self, address: str) -> None:
        """Use the node at an address from now on."""
        self._address = address
        with self._state.open("a") as state:
            state.write(f"export DANDELION_URL=http://{address}\n")

    def _until_ready(self, process: subprocess.Popen[bytes]) -> bytes:
        """Read until a node says its address, and a file that it serves is registered."""
        assert process.stdout is not None
        said, end = b"", time.monotonic() + _COMMAND_S
        while time.monotonic() < end and not (
            _READY.search(said) and (b"serves" not in said or b"registered" in said)
        ):
            if select.select([process.stdout], [], [], 1)[0]:
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    break
                said += part
        return said

    def _addressed(self, text: str) -> str:
        return _ADDRESS.sub(self._address, text)

    def _check(self, snippet: Snippet) -> None:
        """Check that a snippet is valid in its language, without running it."""
        text = snippet.text
        match snippet.language:
            case "python":
                compile(text, snippet.title or "page", "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)
            case "json":
                json.loads(text)
            case "toml":
                table = tomllib.loads(text)
                if not snippet.skipped:
                    self._check_settings(table, text)
            case "dandelion":
                parse(text)
            case "sh" | "console":
                script = (
                    text if snippet.language == "sh" else "\n".join(c for c, _ in commands(text))
                )
                subprocess.run(["bash", "-n", "-c", script], check=True, capture_output=True)
            case "":
                if _CODE.search(text):
                    raise PageError(self._page, snippet, "it looks like code; say its language")
            case "text" | "c" | "ini" | "dockerfile" | "yaml" | "ebnf":
                pass
            case other:
                raise PageError(self._page, snippet, f"language '{other}' is not known")

    def _check_settings(self, table: dict[str, object], text: str) -> None:
        """Check the settings of a node, if that is what a table has."""
        known = {field.name for field in msgspec.structs.fields(Settings)}
        if table.keys() <= known:
            file = self._folder.parent / "settings.toml"
            file.write_text(text)
            load_settings(file, {}, {})


def _checked(found: re.Match[str]) -> str:
    """Check the options of a command that serves until it is ended, and leave it out."""
    words = shlex.split(found[0].replace("\\\n", " "), comments=True)
    make_parser().parse_args(words[1:])
    return ""


def _environment(folder: Path, url: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DANDELION_", "XDG_"))}
    kept |= {"HOME": str(folder), "DANDELION_URL": url, "COLUMNS": "120"}
    kept["DANDELION_BACKENDS"] = "null,process"  # of `run` and `dev`, which start quicker so
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return kept
