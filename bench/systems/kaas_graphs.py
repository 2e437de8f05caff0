"""The launches of a shape: as a blueprint, and for a bare loop.

Both use the same `links`, so engines and bare loops do the same work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, RegistrationDocument, gpu_function
from dandelion.function import Limits

from .bare import BareLaunch, Workload
from .kaas_shapes import WORD_BYTES, Shape, TunedShape, whole_words

INPUT, OUTPUT = "x", "y"
_GOLDEN = 0x9E3779B9


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One launch of the chain: y[i] = mixed(x[i % count] + constants), with buffers by name."""

    kernel: str
    constants: tuple[str, ...]
    x: str
    x_words: int
    y: str
    y_words: int


def _constant(index: int) -> str:
    return f"w{index}"


def kernels_of(shape: Shape) -> list[tuple[str, int]]:
    """Give name and number of constants of each kernel; together they read all there are."""
    if not shape.constants:
        return [(f"link{k}", int(shape.reads_input)) for k in range(shape.kernels)]
    wanted = sum(count for count, _ in shape.constants)
    least = -(-wanted // shape.launches)
    counts = [max(1, least - 1)] * shape.kernels
    at = 0
    while sum(counts[i % shape.kernels] for i in range(shape.launches)) < wanted:
        counts[at] += 1
        at = (at + 1) % shape.kernels
    return [(f"link{k}", n) for k, n in enumerate(counts)]


def links(given: TunedShape) -> Iterator[ChainLink]:
    """Give the launches of a request, in order."""
    shape = given.shape
    kernels = kernels_of(shape)
    total = sum(kernels[i % shape.kernels][1] for i in range(shape.launches))
    sizes = shape.sizes()
    temporary = whole_words(shape.temporary_bytes / shape.temporaries)
    x, x_words = INPUT, min(given.lanes, shape.input_bytes // WORD_BYTES)
    slot = 0
    for index in range(shape.launches):
        kernel, reads = kernels[index % shape.kernels]
        if shape.constants:
            first = [(slot + n) * len(sizes) // total for n in range(reads)]
            operands = tuple(_constant(at) for at in first)
        else:
            operands = (INPUT,) * reads
        slot += reads
        last = index == shape.launches - 1
        y = OUTPUT if last else f"t{index % shape.temporaries}"
        y_words = min(given.lanes, (shape.output_bytes if last else temporary) // WORD_BYTES)
        yield ChainLink(kernel, operands, x, x_words, y, y_words)
        x, x_words = y, y_words


def _operand_words(shape: Shape) -> dict[str, int]:
    found = {_constant(i): size // WORD_BYTES for i, size in enumerate(shape.sizes())}
    return found | {INPUT: shape.input_bytes // WORD_BYTES}


_HEAD = """#include "dandelion.h"

DEVICE u32 total(GLOBAL const u32 *w, u64 words)
{
    u32 sum = 0;
    for (u64 i = GLOBAL_ID(0); i < words; i += GLOBAL_SIZE(0))
        sum += w[i];
    return sum;
}

DEVICE u32 mixed(u32 x, u64 rounds)
{
    for (u64 i = 0; i < rounds; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x += 0x9E3779B9u;
    }
    return x;
}
"""


def source(shape: Shape) -> str:
    """Write the kernels of a shape, all of them different, against ``dandelion.h``."""
    parts = [_HEAD]
    for number, (name, reads) in enumerate(kernels_of(shape)):
        pointers = "".join(f"GLOBAL const u32 *w{i}, u64 w{i}_words, " for i in range(reads))
        sums = "".join(f" + total(w{i}, w{i}_words)" for i in range(reads))
        parts.append(f"""
KERNEL void {name}({pointers}GLOBAL const u32 *x, u64 x_words,
                  GLOBAL u32 *y, u64 y_words, u64 rounds)
{{
    u64 i = GLOBAL_ID(0);
    u32 value = mixed(x[i % x_words]{sums} + {number + 1}u, rounds);
    if (i < y_words)
        y[i] = value;
}}
""")
    return "".join(parts)


def constant_word(tenant: int, index: int) -> int:
    """Give the word that fills a tenant's constant; no other tenant has the same."""
    return ((tenant + 1) * 0x01000193 + (index + 1) * _GOLDEN) & 0xFFFFFFFF


def constants(shape: Shape, tenant: int) -> dict[str, bytes]:
    """Make the constants of a tenant, by name."""
    words = {i: (size // WORD_BYTES, constant_word(tenant, i))
             for i, size in enumerate(shape.sizes())}  # fmt: skip
    return {_constant(i): np.full(n, word, np.uint32).tobytes() for i, (n, word) in words.items()}


def body(shape: Shape, seed: int) -> bytes:
    """Draw the input of a request."""
    return np.random.default_rng(seed).bytes(shape.input_bytes)


def work(given: TunedShape, tenant: int) -> Workload:
    """Write a tenant's requests for a bare loop, launch by launch."""
    shape = given.shape
    size = _operand_words(shape)
    temporary = whole_words(shape.temporary_bytes / shape.temporaries)
    steps = []
    for link in links(given):
        operands = [value for name in link.constants for value in (name, size[name])]
        chain = (link.x, link.x_words, link.y, link.y_words, given.rounds)
        grid, block = (given.blocks, 1, 1), (shape.threads, 1, 1)
        steps.append(BareLaunch(link.kernel, (*operands, *chain), grid, block))
    weights = constants(shape, tenant)
    buffers = {INPUT: shape.input_bytes, OUTPUT: shape.output_bytes}
    buffers |= {f"t{i}": temporary for i in range(shape.temporaries)}
    buffers |= {name: len(data) for name, data in weights.items()}
    text = source(shape)
    name = _file(shape)
    return Workload(name, text, buffers, INPUT, OUTPUT, tuple(steps), constants=weights)


def _file(shape: Shape) -> str:
    return "".join(c if c.isalnum() else "_" for c in shape.name.lower())


def function_name(shape: Shape, tenant: int) -> str:
    """Name a tenant's function."""
    return f"{_file(shape)}_{tenant}"


def _blueprint(given: TunedShape) -> str:
    shape = given.shape
    size = _operand_words(shape)
    weights = [name for name in size if name != INPUT]
    module = _file(shape)
    b = bp.Blueprint([INPUT], weights=weights, outputs=[OUTPUT], modules={module: f"{module}.c"})
    for index in range(shape.temporaries):
        each = whole_words(shape.temporary_bytes / shape.temporaries)
        b.buffer(f"t{index}", each, temporary=True)
    b.buffer(OUTPUT, shape.output_bytes)

    def launch(link: ChainLink) -> None:
        arguments: list[bp.Buffer | int] = []
        for name in link.constants:
            arguments += (b[name], size[name])
        arguments += (b[link.x], link.x_words, b[link.y], link.y_words, given.rounds)
        b.launch(link.kernel, arguments, grid=given.blocks, block=shape.threads)

    chain = list(links(given))
    first, loop, times, last = _folded(chain, math.lcm(shape.kernels, shape.temporaries))
    for link in first:
        launch(link)
    if times:
        with b.repeat(times):
            for link in loop:
                launch(link)
    for link in last:
        launch(link)
    return b.json()


def _folded(
    chain: list[ChainLink], period: int
) -> tuple[list[ChainLink], list[ChainLink], int, list[ChainLink]]:
    """Find a loop in a chain: what comes before it, what it does, how often, what comes after."""
    times = (len(chain) - period - 1) // period
    loop = chain[period : 2 * period]
    end = period * (1 + times)
    if times < 2 or chain[period:end] != loop * times:
        return chain, [], 0, []
    return chain[:period], loop, times, chain[end:]


def function(given: TunedShape, tenant: int, *, same: bool = False) -> FunctionDocument:
    """Describe a tenant's function; `same` gives it the constants of tenant 0."""
    shape = given.shape
    weights = constants(shape, 0 if same else tenant)
    return gpu_function(
        function_name(shape, tenant), _blueprint(given), inputs=(INPUT, *weights),
        outputs=(OUTPUT,), files={f"{_file(shape)}.c": source(shape).encode()},
        static={name: {name: data} for name, data in weights.items()}, limits=Limits(wall_s=120.0),
    )  # fmt: skip


def document(given: TunedShape, tenants: int, *, same: bool = False) -> RegistrationDocument:
    """Describe the functions of so many tenants; see `function`."""
    return RegistrationDocument(
        functions=tuple(function(given, tenant, same=same) for tenant in range(tenants))
    )
