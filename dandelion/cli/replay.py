"""``dandelion replay FILE``: run a recording again and compare, or debug one of its calls."""

from __future__ import annotations

import os

from dandelion.cli.loading import load_sources
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.cli.settings import load_settings
from dandelion.cli.wheel_folder import wheel_flags
from dandelion.recording.compare import Change, Difference, differences
from dandelion.recording.records import Recording, decode_recording
from dandelion.replay.debug import debug, find_call
from dandelion.replay.run import BACKENDS, replay

_GPU = BACKENDS[-1]


def run(arguments: Arguments, out: Output) -> int:
    """Replay. The exit code is 1 if results differ."""
    (path,) = arguments.paths
    recording = decode_recording(path.read_bytes())
    if arguments.calls and arguments.call is not None:
        raise WrongUsage("--calls", "it only lists the calls", "give it or --debug-call")
    if arguments.calls:
        _list(recording, out)
        return 0
    if arguments.call is not None:
        return _debug(recording, arguments.call, out)
    changes = [load_sources(arguments.changes)] if arguments.changes else []
    backends = [*BACKENDS[:-1], arguments.backend or _GPU]
    here = load_settings(None, os.environ, wheel_flags(path, arguments.wheels))
    again = replay(recording, changes, backends, arguments.deadline, here, arguments.tenant)
    found = differences(recording, again)
    _show(found, recording, again, out)
    return 1 if any(one.change is not Change.CODE for one in found) else 0


def _debug(recording: Recording, label: str, out: Output) -> int:
    call = find_call(recording, label)
    ended = debug(recording, call)
    if ended.traceback:
        out.line(ended.traceback.rstrip())
    what = "error" if ended.traceback else "result"
    out.line(f"the {what} is {'' if ended.same else 'not '}the recorded one")
    if call.error is not None and not ended.same:
        out.line(f"recorded: {call.error.message}")
    return 0 if ended.same else 1


def _show(found: list[Difference], recording: Recording, again: Recording, out: Output) -> None:
    if out.as_json:
        rows = [{"change": d.change.value, "where": d.where, "detail": d.detail} for d in found]
        out.document({"calls": len(again.calls), "differences": rows})
        return
    if found:
        out.table(
            ("differs", "where", "detail"), [(d.change.value, d.where, d.detail) for d in found]
        )
    else:
        out.line(f"{recording.name}: {len(again.calls)} calls, the same results bit by bit")
    if recording.omitted_calls:
        out.line(f"{recording.omitted_calls} calls are not in the recording and not compared")


def _list(recording: Recording, out: Output) -> None:
    rows = [
        (
            call.label,
            call.function,
            call.engine or "(kept)",
            f"{call.duration_us / 1000:.3f}",
            "ok" if call.error is None else call.error.message,
        )
        for call in recording.calls
    ]
    out.table(("call", "function", "engine", "ms", "outcome"), rows)
