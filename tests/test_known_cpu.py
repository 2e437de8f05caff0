"""Which CPU a compiler is told that does not know that of the machine."""

from __future__ import annotations

import pytest
from dandelion.backends.gpu.pocl import known_cpu

_HASWELL = {"fpu", "sse4_2", "avx", "avx2", "fma", "bmi1", "bmi2", "movbe", "f16c"}
_WIDE = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "adx", "clwb"}


@pytest.mark.parametrize(
    ("flags", "name", "vector_bytes"),
    [
        (_HASWELL | _WIDE, "skylake-avx512", 64),
        (_HASWELL | _WIDE | {"avx512_bf16", "avx512_vnni"}, "skylake-avx512", 64),
        ((_HASWELL | _WIDE) - {"avx512vl"}, "haswell", 32),
        (_HASWELL, "haswell", 32),
        (_HASWELL - {"movbe"}, "x86-64", 16),
        (set(), "x86-64", 16),
    ],
)
def test_it_has_no_more_abilities(flags: set[str], name: str, vector_bytes: int) -> None:
    cpu = known_cpu(flags)
    assert (cpu.name, cpu.vector_bytes) == (name, vector_bytes)
    assert cpu.flags <= flags
