"""Exported networks on processors beside torch: where it can be measured, and where not."""

from __future__ import annotations

import pytest
from dandelion.bench.experiment import Bench
from dandelion.bench.experiments import exported_cpu
from dandelion.bench.experiments.exported_cpu import AWAITED, BLOCKING, TORCH

from dandelion.errors import BackendUnavailable


def test_networks_are_compared_with_torch() -> None:
    pytest.importorskip("torch", reason="the extra 'export' is not installed")
    found = exported_cpu.exported_cpu(Bench(quick=True, backend="opencl"))
    (panel,) = found.panels
    assert len(panel.rows) == 15
    assert {row.system for row in panel.rows} == {TORCH, BLOCKING, AWAITED}
    assert all(row.values["ratio"] == 1 for row in panel.rows if row.system == TORCH)
    assert len(found.budgets) == 2


def test_without_torch_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise BackendUnavailable("torch", "no module", "install it")

    monkeypatch.setattr(exported_cpu, "torch_library", missing)
    (skip,) = exported_cpu.exported_cpu(Bench(quick=True, backend="opencl")).skips
    assert "install it" in skip.reason


def test_devices_are_not_what_it_is_about() -> None:
    (skip,) = exported_cpu.exported_cpu(Bench(quick=True, backend="cuda")).skips
    assert "processors" in skip.reason
