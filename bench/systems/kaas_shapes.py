"""Graphs of kernels with the shape of KaaS' four models, without their mathematics.

A `Shape` says how many launches of how many different kernels there are, how large the constants,
the temporaries, the input and the output are, and how much of a device one launch fills. Its
kernels read all of their constants and mix them into a chain of numbers, each launch a link; then
every thread goes on mixing for a number of rounds, so that a launch takes as long as it should.
`calibrated` finds the rounds on the device that is measured.

Every tenant has its own constants, so nothing that one tenant left behind helps another, and a
reply shows whose constants were read. `kaas_graphs` makes launches of a shape.

Source: sizes and counts of the models in KaaS' request files, times on a V100.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

WORD_BYTES = 4


class Shape(msgspec.Struct, frozen=True):
    """What a graph looks like.

    Attributes:
        name: of the model.
        launches: of one request.
        kernels: how many of them are different.
        constants: groups of constants: how many, of how many bytes each.
        temporaries: number of buffers between launches, and `temporary_bytes` of all of them.
        share: part of the compute units for which a launch has blocks.
        target_us: time of a request on a device without other work.
        blocks: of a launch, where the model says so; 0 to go by `share`.
        threads: of a block.
        reads_input: every launch reads the input too, not only the first.
    """

    name: str
    launches: int
    kernels: int
    constants: tuple[tuple[int, int], ...]
    input_bytes: int
    output_bytes: int
    temporaries: int
    temporary_bytes: int
    share: float
    target_us: float
    blocks: int = 0
    threads: int = 512
    reads_input: bool = False

    @property
    def constant_bytes(self) -> int:
        """All constants together."""
        return sum(count * size for count, size in self.constants)

    def sizes(self) -> list[int]:
        """Give the size of each constant in bytes, large and small ones in turns."""
        keyed = [
            ((index + 0.5) / count, size)
            for count, size in self.constants
            for index in range(count)
        ]
        return [size for _, size in sorted(keyed)]


RESNET50 = Shape(
    "resnet50", launches=90, kernels=43, constants=((1, 8_200_192), (53, 1_769_472), (54, 2048)),
    input_bytes=602_112, output_bytes=4012, temporaries=36, temporary_bytes=58_600_000, share=0.16,
    target_us=4420.0,
)  # fmt: skip
BERT = Shape(
    "bert", launches=781, kernels=30,
    constants=((246, 4096), (96, 4_194_304), (48, 16_777_216), (1, 120_000_000)),
    input_bytes=9216, output_bytes=3072, temporaries=108, temporary_bytes=38_200_000, share=0.71,
    target_us=92_900.0,
)  # fmt: skip
JACOBI = Shape(
    "jacobi", launches=3000, kernels=2, constants=(), input_bytes=1_052_672, output_bytes=4104,
    temporaries=2, temporary_bytes=8208, share=0.89, blocks=256, threads=64, target_us=54_000.0,
    reads_input=True,
)  # fmt: skip
CGEMM = Shape(
    "cGEMM", launches=2, kernels=2, constants=((1, 2_000_000_000), (1, 200_000)),
    input_bytes=8_000_000, output_bytes=800, temporaries=1, temporary_bytes=20_000_000, share=0.88,
    target_us=38_900.0,
)  # fmt: skip
SHAPES = (RESNET50, BERT, JACOBI, CGEMM)

MICRO = Shape(
    "three multiplications", launches=3, kernels=1, constants=((3, 4_194_304),),
    input_bytes=4_194_304, output_bytes=4_194_304, temporaries=2, temporary_bytes=8_388_608,
    share=0.9, target_us=500.0,
)  # fmt: skip
"""KaaS' test model: three matrix multiplications of 1024 x 1024 in a row."""


class Scale(msgspec.Struct, frozen=True):
    """How shapes are made smaller: by how much their counts, times and sizes are divided."""

    launches: int = 1
    time: float = 1.0
    constants: float = 1.0
    buffers: float = 1.0

    def of(self, shape: Shape) -> Shape:
        """Give the smaller shape. Nothing becomes less than one launch, kernel or buffer."""

        def fewer(count: int) -> int:
            return max(1, count // self.launches)

        pair = 2 if shape.launches > 1 else 1  # a chain ends with another launch than it begins
        return msgspec.structs.replace(
            shape,
            launches=max(pair, shape.launches // self.launches),
            kernels=min(shape.kernels, max(pair, fewer(shape.kernels))),
            constants=tuple(
                (fewer(n), whole_words(size / self.constants)) for n, size in shape.constants
            ),
            input_bytes=whole_words(shape.input_bytes / self.buffers),
            output_bytes=whole_words(shape.output_bytes / self.buffers),
            temporaries=min(shape.temporaries, max(pair, fewer(shape.temporaries))),
            temporary_bytes=whole_words(shape.temporary_bytes / self.buffers),
            target_us=shape.target_us / self.time,
        )


def whole_words(size_bytes: float, least: int = 64) -> int:
    """Round a size to whole words, not below `least` bytes."""
    return max(least, int(size_bytes) // WORD_BYTES * WORD_BYTES)


class TunedShape(msgspec.Struct, frozen=True):
    """A shape on a device, with the blocks of every launch and the rounds of every thread."""

    shape: Shape
    blocks: int
    rounds: int

    @property
    def lanes(self) -> int:
        """Threads of a launch."""
        return self.blocks * self.shape.threads


def tuned(shape: Shape, compute_units: int, rounds: int = 1, threads: int = 0) -> TunedShape:
    """Fit a shape to a device, with rounds that are not calibrated yet.

    Args:
        compute_units: of the device.
        rounds: of mixing.
        threads: of a block, instead of the shape's own.
    """
    blocks = shape.blocks or max(1, round(compute_units * shape.share))
    if threads:
        shape = msgspec.structs.replace(shape, threads=threads)
        blocks = min(blocks, max(1, compute_units))
    return TunedShape(shape, blocks, rounds)


def calibrated(
    given: TunedShape, timed: Callable[[TunedShape], float], steps: int = 7
) -> TunedShape:
    """Find the rounds with which a request takes as long as its shape says.

    Args:
        given: its rounds are ignored.
        timed: gives the median time of a request in microseconds.
        steps: how many tries at most.

    Returns:
        The best try; one with a single round where launches alone take longer.
    """
    target = given.shape.target_us
    rounds, before = 64, (0, 0.0)
    best, nearest = msgspec.structs.replace(given, rounds=rounds), math.inf
    for _ in range(steps):
        tried = msgspec.structs.replace(given, rounds=rounds)
        took = timed(tried)
        if abs(took - target) < nearest:
            best, nearest = tried, abs(took - target)
        if nearest < 0.03 * target or (rounds == 1 and took > target):
            break
        slope = (took - before[1]) / (rounds - before[0]) if rounds != before[0] else 0.0
        step = (target - took) / slope if slope > 0 else rounds * (target / took - 1)
        before = (rounds, took)
        rounds = max(1, min(round(rounds + step), rounds * 16))
        if rounds == before[0]:
            break
    return best
