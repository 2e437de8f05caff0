"""Demonstrate `digits`: start a node, send it 200 handwritten digits, check every answer.

Run it with ``python -m dandelion.compositions.digits.demo``; see ``--help``. First each digit is an
invocation of its own, to measure the latency of one; then all digits are one invocation, to show
the stages. The demonstration writes a picture of the composition and the trace of the large
invocation. The exit status is 0 only if every answer equals that of the numpy oracle, alone and
together, and as many digits are right as training recorded.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from dandelion.data import Item
from dandelion.errors import DandelionError
from dandelion.frontend.client import Client

from . import bundle, show
from .file_server import serve_files
from .node_process import node_process
from .trace import Trace, engines_of, read_trace

READY_S = 120.0
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Singles:
    """The results of the invocations with one digit each.

    Attributes:
        predictions: one for each file, in the order of the requests.
        seconds: how long each took, from the client's side.
    """

    predictions: tuple[bundle.Prediction, ...]
    seconds: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Together:
    """The result of the invocation with all digits."""

    report: bundle.Report
    is_right: bool
    seconds: float
    trace: Trace
    trace_bytes: bytes


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must hold."""

    what: str
    holds: bool


def one_by_one(client: Client, requests: Sequence[Item], progress: Progress) -> Singles:
    """Invoke the composition for each request alone; the first call is not timed."""
    client.invoke(bundle.NAME, requests=[requests[0]], deadline_s=DEADLINE_S)
    predictions: list[bundle.Prediction] = []
    seconds = []
    for request in progress.track(requests, description="one at a time"):
        started = time.perf_counter()
        outputs = client.invoke(bundle.NAME, requests=[request], deadline_s=DEADLINE_S)
        seconds.append(time.perf_counter() - started)
        predictions += bundle.read_report(outputs).predictions
    return Singles(tuple(predictions), np.array(seconds))


def all_at_once(client: Client, requests: Sequence[Item]) -> Together:
    """Invoke the composition once for all requests."""
    started = time.perf_counter()
    sets = {"requests": list(requests)}
    result = client.invoke_sets(bundle.NAME, sets, deadline_s=DEADLINE_S)
    seconds = time.perf_counter() - started
    expected = bundle.expected({"requests": requests})
    is_right = bundle.agrees(bundle.results(result.sets), expected)
    data = client.trace(result.id)
    return Together(bundle.read_report(result.sets), is_right, seconds, read_trace(data), data)


def right(predictions: Iterable[bundle.Prediction]) -> int:
    """Count the predictions that are their files' labels."""
    labels = bundle.held_out().labels
    return sum(p.digit == labels[bundle.index_of(p.name)] for p in predictions)


def checks(requests: Sequence[Item], singles: Singles, together: Together) -> list[Check]:
    """Compare the answers with the oracle, the labels and each other."""
    predictions = together.report.predictions
    requested = sorted(request.name for request in requests)
    alone = {p.name: p.digit for p in singles.predictions}
    count = len(predictions)
    is_whole = count == len(bundle.held_out().labels)
    wanted = bundle.recorded_accuracy() * count if is_whole else 0.9 * count
    return [
        Check("every file is in the report, once", [p.name for p in predictions] == requested),
        Check("every answer equals numpy's, to 1e-5", together.is_right),
        Check("alone and together the same", alone == {p.name: p.digit for p in predictions}),
        Check("as many right as training recorded", right(predictions) >= round(wanted)),
        Check("the GPU function ran on an engine", bool(engines_of(together.trace, "classify"))),
    ]


def write_files(client: Client, together: Together, folder: Path) -> list[Path]:
    """Write the picture of the composition and the trace."""
    folder.mkdir(parents=True, exist_ok=True)
    graph, trace = folder / "digits.svg", folder / "digits.trace.json"
    graph.write_text(client.graph(bundle.NAME, "svg"))
    trace.write_bytes(together.trace_bytes)
    return [graph, trace]


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Run the demonstration; return whether all checks hold."""
    with ExitStack() as stack:
        url = arguments.url or stack.enter_context(node_process(arguments.backend))
        files = stack.enter_context(serve_files(bundle.png_files()))
        client = stack.enter_context(Client(url))
        if not client.ready(READY_S):
            console.print(f"[red]the node at {url} has no engines after {READY_S:.0f} s")
            return False
        client.register(bundle.document())
        requests = bundle.example_inputs(arguments.seed, files, arguments.count)["requests"].items
        with Progress(console=console) as progress:
            singles = one_by_one(client, requests, progress)
        together = all_at_once(client, requests)
        console.print(show.confusion(together.report, bundle.held_out().labels))
        console.print(show.mistakes(together.report, bundle.held_out()))
        console.print(show.stages(together.trace, together.seconds))
        device = show.device(together.trace, client.engines())
        good = right(together.report.predictions)
        console.print(show.summary(url, device, good, singles.seconds, together.seconds))
        paths = write_files(client, together, arguments.out)
        found = checks(requests, singles, together)
    for path in paths:
        console.print(f"wrote {path}")
    for check in found:
        console.print(
            f"[green]ok[/]   {check.what}" if check.holds else f"[red]FAIL[/] {check.what}"
        )
    return all(check.holds for check in found)


def parser() -> argparse.ArgumentParser:
    """Describe the options."""
    result = argparse.ArgumentParser("digits", description=(__doc__ or "").partition("\n")[0])
    add = result.add_argument
    add("--url", help="a running node; by default one is started")
    add("--backend", default="cuda|hip|opencl", help="GPU backends, the first that works is used")
    add("--count", type=_count, default=None, help="how many digits; by default all 200")
    add("--seed", type=int, default=1, help="of the order of the digits")
    add("--out", type=Path, default=Path("demo"), help="folder for picture and trace")
    return result


def _count(text: str) -> int:
    limit = len(bundle.held_out().labels)
    if not (text.isdecimal() and 1 <= int(text) <= limit):
        raise argparse.ArgumentTypeError(f"'{text}' is not in 1..{limit}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 if all is right."""
    console = Console()
    try:
        return 0 if run(parser().parse_args(argv), console) else 1
    except DandelionError as error:
        console.print(f"[red]{type(error).__name__}[/]: {error}", markup=True, highlight=False)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
