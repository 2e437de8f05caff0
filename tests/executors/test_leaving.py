"""Engine processes whose node closes: they leave by themselves, after they have cleaned up."""

from __future__ import annotations

from contextlib import closing

import pytest

from dandelion.executors import Demands, Processes, ProcessExecutor, StartedEngine
from dandelion.executors.processes import Process
from dandelion.memory import SharedDomain
from tests.executors.harness import Loop, engine_state, surroundings

LIMIT_S = 60.0


class RealProcesses(Processes):
    """Processes of an engine.

    Attributes:
        codes: how they ended; None for those that were killed.
    """

    def __init__(self, arena: SharedDomain) -> None:
        super().__init__(("null",), "", {}, {}, arena.map, 0)
        self.codes: list[int | None] = []

    def end(self, process: Process, limit_s: float = 0.0, keep: object = None) -> int | None:
        self.codes.append(super().end(process, limit_s, keep))
        return self.codes[-1]


@pytest.mark.parametrize("is_up", [True, False])
def test_a_process_leaves_by_itself_when_its_node_closes(
    is_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("process", "processes"):
        monkeypatch.setattr(f"dandelion.executors.{module}.LEAVE_LIMIT_S", LIMIT_S)
    loop = Loop()
    with closing(SharedDomain(1 << 20)) as arena:
        around, processes = surroundings(loop, arena), RealProcesses(arena)
        info = StartedEngine("", "null", "")
        executor = ProcessExecutor(engine_state(), info, around, processes, loop, Demands())
        executor.start()
        loop.until(lambda: loop.infos if is_up else processes.current)
        executor.close()
    assert processes.codes == [0]
