"""A backend that gives the recorded answers of I/O functions, and performs nothing.

Answers are found by function and content of inputs. If a call was made more than once, its answers
are given in the recorded order, and the last one for all further calls.
"""

from __future__ import annotations

from collections import defaultdict, deque

from dandelion.driver import (
    AsyncEngine,
    Call,
    Driver,
    EngineFactory,
    Hosting,
    InstanceSets,
    Resource,
)
from dandelion.errors import NotRecorded, from_record
from dandelion.recording.records import RecordedCall, Recording, call_identity, recorded_set


class RecordedDriver(Driver):
    """Provides the platform's functions of a recording.

    Args:
        recording: with their answers.
    """

    name = "recorded"
    hosting = Hosting.LOOP

    def __init__(self, recording: Recording) -> None:
        self.platform_functions = recording.platform  # type: ignore[misc]  # of this instance
        self.formats = frozenset(  # type: ignore[misc]
            code.format for spec in recording.platform for code in spec.code
        )
        self._factory = _RecordedFactory(recording)

    def factory(self) -> EngineFactory:
        return self._factory


class _RecordedFactory(EngineFactory):
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def probe(self) -> list[Resource]:
        return [Resource("recorded", "answers of a recording")]

    def engine(self, resource: str) -> AsyncEngine:
        return RecordedEngine(self._recording)


class RecordedEngine(AsyncEngine):
    """Answers calls of I/O functions.

    Args:
        recording: with the answers.
    """

    name = "recorded"

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._answers: dict[bytes, deque[RecordedCall]] = defaultdict(deque)
        for call in recording.calls:
            if call.kind == "io":
                self._answers[call.identity()].append(call)

    async def _run(self, call: Call) -> InstanceSets:
        spec = call.function.spec
        given = tuple([recorded_set(one) for one in call.inputs])
        answers = self._answers.get(call_identity(spec.name, given, call.origin))
        if not answers:
            items = [item.name for one in given if one is not None for item in one.items]
            raise NotRecorded(spec.name, ", ".join(items[:3]))
        answer = answers.popleft() if len(answers) > 1 else answers[0]
        if answer.error is not None:
            raise from_record(answer.error)
        assert answer.outputs is not None, "it has an error or outputs"
        return tuple([self._recording.restored(one) for one in answer.outputs])

    async def close(self) -> None:
        """Nothing is open."""
