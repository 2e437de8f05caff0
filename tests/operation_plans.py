"""Plans of library operations."""

from __future__ import annotations

from dandelion.backends.gpu.lowering import Lowering
from dandelion.backends.gpu.plan import Plan, plan

import dandelion.blueprint as bp


def planned(config: bp.GpuConfig, sizes: dict[str, int], lowering: Lowering, *cfg: int) -> Plan:
    return plan(config, sizes, lambda name, at: cfg[at], lowering=lowering)
