"""``dandelion bench``: run experiments and show their results.

The benchmarks are loaded by name, like backends; the engine never imports them. Progress is written
to standard error, tables and JSON to standard output.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.errors import BackendUnavailable

_PLAIN_WIDTH = 120
_REMEDY = "pip install 'dandelion-engine[bench]'"


def run(arguments: Arguments, out: Output) -> int:
    """Run the verb after ``bench``; return 1 if an experiment failed."""
    return _VERBS[arguments.bench_verb](arguments, out)


def _load(name: str) -> Any:  # a module of the benchmarks, which the engine does not know
    try:
        return importlib.import_module(f"dandelion.bench.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dandelion.bench."):
            raise  # a defect of ours
        raise BackendUnavailable("bench", f"{error.name} is not installed", _REMEDY) from None


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)


def _list(arguments: Arguments, out: Output) -> int:
    known = _load("experiment").chosen(arguments.names)
    if out.as_json:
        names = ("name", "group", "question", "source", "needs_gpu")
        out.document([{name: getattr(e, name) for name in names} for e in known])
        return 0
    rows = [(e.name, e.group, "GPU" if e.needs_gpu else "", e.question, e.source) for e in known]
    out.table(("experiment", "group", "needs", "question", "source"), rows)
    return 0


def _run(arguments: Arguments, out: Output) -> int:
    runner = _load("experiment")
    chosen = runner.chosen(arguments.names)
    devices = _devices(arguments.backend)
    folder = arguments.output or runner.default_folder(quick=arguments.quick)
    with Watching(out, debug=arguments.debug) as watching:
        results = runner.run_all(
            chosen, devices=devices, quick=arguments.quick, folder=folder, watcher=watching
        )
    if out.as_json:
        out.document({"outcomes": results, "failed": watching.failures, "folder": str(folder)})
    elif results:
        out.line(f"\nsaved in {folder}")
    return 1 if watching.failures else 0


def _devices(backend: str | None) -> Any:  # a record of the benchmarks
    machine = _load("machine")
    found = machine.devices((backend,) if backend else machine.BACKENDS)
    if backend and not found.backend:
        raise BackendUnavailable(backend, found.missing.get(backend, "it is not available"))
    return found


class Watching:
    """Shows the progress of a run: a bar on a terminal, else a line for each experiment.

    It draws only when its methods are called.

    Args:
        out: prints tables, unless the output is JSON.
        debug: show tracebacks.

    Attributes:
        failures: errors of experiments by name.
    """

    def __init__(self, out: Output, *, debug: bool) -> None:
        self._out = out
        self._debug = debug
        self._tables = _console()
        self._errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        columns = (MofNCompleteColumn(), BarColumn(20), TextColumn("{task.description}"))
        self._bar = Progress(
            *columns, console=self._errors, auto_refresh=False, transient=True,
            disable=not self._errors.is_terminal,
        )  # fmt: skip
        self._line = self._bar.add_task("", total=1)
        self._name = ""
        self.failures: dict[str, str] = {}

    def __enter__(self) -> Watching:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, experiment: Any, place: int, count: int) -> None:
        """Show that an experiment starts."""
        self._name = experiment.name
        if self._bar.disable:
            self._errors.print(f"[{place}/{count}] {experiment.name}: {experiment.question}")
        self._bar.update(self._line, total=count, completed=place - 1)
        self.say("")

    def say(self, words: str) -> None:
        """Show the current step of the experiment."""
        description = f"{self._name}: {words}" if words else self._name
        self._bar.update(self._line, description=description.replace("[", "\\["), refresh=True)

    def done(self, result: Any, saved: Path) -> None:
        """Print what was found."""
        if self._out.as_json:
            return
        self._bar.stop()
        _load("report.tables").print_result(result, self._tables)
        self._bar.start()

    def failed(self, experiment: Any, error: Exception) -> None:
        """Report the error of an experiment."""
        self.failures[experiment.name] = f"{type(error).__name__}: {error}"
        self._bar.stop()
        self._errors.print(f"dandelion: experiment {experiment.name} failed: {error!r}")
        if self._debug:
            traceback.print_exception(error)
        self._bar.start()


def _results(arguments: Arguments) -> list[Any]:
    """Read the results that are named; else those of the last run, and say which these are."""
    if arguments.paths:
        read = _load("records").read_results
        return [result for path in arguments.paths for result in read(path)]
    results: list[Any]
    results, folder, others = _load("experiment").latest_results()
    left = "".join(
        f"; {other} has {number}, name it to see them" for other, number in others.items()
    )
    count = "1 result" if len(results) == 1 else f"{len(results)} results"
    print(f"dandelion: {count} in {folder}{left}", file=sys.stderr)
    return results


def _plot(arguments: Arguments, out: Output) -> int:
    draw = _load("report.plots").draw
    folder = arguments.output or Path("bench-pictures")
    drawn = [path for result in _results(arguments) for path in draw(result, folder)]
    if out.as_json:
        out.document([str(path) for path in drawn])
    else:
        out.line(f"{len(drawn)} pictures in {folder}")
    return 0


def _report(arguments: Arguments, out: Output) -> int:
    path = arguments.output or Path("bench-report.html")
    if path.is_dir():
        raise WrongUsage("--out", f"{path} is a folder; name the file of the report")
    if not _load("report.plots").installed():
        print(f"dandelion: the report has no pictures; to get them: {_REMEDY}", file=sys.stderr)
    _load("report.html").write_page(_results(arguments), path)
    if out.as_json:
        out.document({"report": str(path)})
    else:
        out.line(str(path))
    return 0


def _compare(arguments: Arguments, out: Output) -> int:
    comparing = _load("report.compare")
    old, new = arguments.paths
    comparisons, unpaired = comparing.compare_saved(old, new)
    if out.as_json:
        out.document({"comparisons": comparisons, "unpaired": unpaired})
        return 0
    console = _console()
    for comparison in comparisons:
        comparing.print_comparison(comparison, console)
    for sentence in unpaired:
        out.line(sentence)
    return 0


_VERBS: dict[str, Callable[[Arguments, Output], int]] = {
    "list": _list,
    "run": _run,
    "plot": _plot,
    "report": _report,
    "compare": _compare,
}
