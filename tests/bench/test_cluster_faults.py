"""The load under which nodes are disturbed finds what is wrong, lost or failed."""

from __future__ import annotations

from typing import cast

import pytest
from dandelion.bench.experiments import cluster_faults
from dandelion.bench.experiments.cluster_faults import Fault, FaultyCluster, Load, _findings

from dandelion.data import Item, ItemSet, Sets
from dandelion.errors import Conflict, Unknown
from dandelion.frontend.problem import Unreachable


class PlayedClient:
    """A node that answers with the right text, but for some numbers."""

    def __init__(self, wrong: int, gone: int, failing: int, lost: int) -> None:
        self.wrong, self.gone, self.failing, self.lost = wrong, gone, failing, lost
        self.id = ""

    def client(self, number: int) -> PlayedClient:
        return self

    def invoke(self, name: str, x: bytes, deadline_s: float) -> Sets:
        number = int(x.split()[1])
        if number == self.gone:
            self.gone = -1
            raise Unreachable("http://a", "it is gone")
        if number == self.failing:
            raise Conflict("function", "shout", "it is another one")
        text = b"wrong" if number == self.wrong else x.upper()
        return Sets({"y": ItemSet("y", (Item("y", 0, text),))})

    def submit(self, name: str, x: bytes, key: str) -> PlayedClient:
        made = PlayedClient(self.wrong, self.gone, self.failing, self.lost)
        made.id = key.removeprefix("number-")
        return made

    def submitted(self, id_: str) -> PlayedClient:
        self.id = id_
        return self

    def result(self, timeout_s: float) -> Sets:
        if int(self.id) == self.lost:
            raise Unknown("invocation", self.id)
        return self.invoke("shout", f"invocation {self.id}".encode(), timeout_s)


def run(monkeypatch: pytest.MonkeyPatch, **given: int) -> dict[str, bool]:
    monkeypatch.setattr(cluster_faults.time, "sleep", lambda s: None)
    wanted = {"wrong": -1, "gone": -1, "failing": -1, "lost": -1, **given}
    load = Load(cast(FaultyCluster, PlayedClient(**wanted)), 20)
    load.caller(0)
    assert len(load.acknowledged) == 10
    for number in load.acknowledged:
        load.collect(number)
    assert load.repeated == ("gone" in given)
    load.answered = [1.0, 2.0, 2.5, 9.0, 9.5, 20.0]
    assert load.longest_pause_s(1.5, 10.0) == 6.5
    found = _findings(load, [Fault("killed", 0.0, 3.0, 0.5)], 3)
    return {budget.path.split(" that ")[-1]: budget.passes for budget in found.budgets}


def test_what_goes_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {
        "wrong answers": True,
        "are lost": True,
        "failed": True,
        "back after a fault": True,
    }
    assert run(monkeypatch) == run(monkeypatch, gone=4) == good
    assert (
        run(monkeypatch, wrong=4) == run(monkeypatch, wrong=5) == {**good, "wrong answers": False}
    )
    assert run(monkeypatch, failing=4) == {**good, "failed": False}
    assert run(monkeypatch, lost=5) == {**good, "are lost": False, "failed": False}
