"""Convolutions on processors, without unfolding.

First the images are written with their padding, so that rows follow each other without any edge
that would need a comparison. With a stride, each row and column in turn goes to a plane of its own
(a *phase*): then the pixels that one weight of the kernel meets are neighbours in memory, whatever
the stride is. So the convolution itself multiplies vectors of pixels, read where they lie, with one
weight for each filter. The sums of some filters and pixels stay in registers until they are done.

Pixels are counted with what lies between two rows of the result: these are computed, and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dandelion.blueprint import Access
from dandelion.blueprint.operation_calls import ConvolutionCall, PartCall
from dandelion.blueprint.operation_records import Activation, ElementType, ImageLayout

from .template_processor import begin_kernel, lanes_of, rows_of_item
from .templates import (
    Template,
    TemplateArgument,
    TemplateLaunch,
    access,
    arguments,
    finished,
    head,
    shape_of,
    starts,
    symbol_of,
    u64,
)

MOST_BYTES = 64 << 20
"""Of padded images. Larger ones are convolved without."""
_WIDEST = 64
"""So many pixels are computed at a time at most."""
_WORTH = 1.15
"""A narrower tile has to compute so much less."""
_START = """#undef B_START
#define B_START(z) ((z) * channels * PHASES_H * PHASES_W * plane)
"""


@dataclass(frozen=True, slots=True)
class Padded:
    """Where the elements of padded images are.

    Attributes:
        phases: of rows and of columns.
        rows, pitch: of a plane.
        planes: of all images and channels.
        behind: elements behind the last plane: the last pixels are computed with all others of
            their vectors, and each reads as far to the right as the kernel reaches.
    """

    phases: tuple[int, int]
    rows: int
    pitch: int
    planes: int
    behind: int

    @property
    def elements(self) -> int:
        """Of all planes, and what is read behind them."""
        return self.planes * self.rows * self.pitch + self.behind


def padded_images(call: ConvolutionCall) -> Padded | None:
    """Lay the images of a convolution out; None if it is computed in another way."""
    if call.layout is not ImageLayout.NCHW or call.dtype not in (ElementType.F32, ElementType.F64):
        return None
    reach = [(call.kernel[at] - 1) * call.dilation[at] for at in (0, 1)]
    rows, pitch = (call.out_size[at] + reach[at] // call.stride[at] for at in (0, 1))
    phases = (min(call.stride[0], reach[0] + 1), min(call.stride[1], reach[1] + 1))
    planes = call.batch * call.channels * phases[0] * phases[1]
    found = Padded(phases, rows, pitch, planes, _WIDEST + reach[1] // call.stride[1])
    return found if found.elements * call.dtype.size_bytes <= MOST_BYTES else None


def _macros(call: ConvolutionCall, padded: Padded) -> str:
    down, across = padded.phases
    return (
        f"#define PHASES_H {down}\n#define PHASES_W {across}\n"
        "#define TAP(dy, dx) (((dy) * STEP_H % STRIDE_H * PHASES_W + (dx) * STEP_W % STRIDE_W)"
        " * plane + (dy) * STEP_H / STRIDE_H * pitch + (dx) * STEP_W / STRIDE_W)\n"
    )


def padding(call: ConvolutionCall, padded: Padded, target: str) -> TemplateLaunch:
    """Write padded images.

    Args:
        call: whose images they are.
        padded: their layout.
        target: buffer for them.
    """
    shape = shape_of(call)
    channels = call.batch * call.channels
    numbers = {
        "height": call.size[0], "width": call.size[1], "top_pad": call.padding[0],
        "left": call.padding[1], "plane_rows": padded.rows, "pitch": padded.pitch,
        "count": channels, "behind": padded.behind,
    }  # fmt: skip
    symbol = f"padded_{shape.kind}_{call.dtype.value}_{padded.phases[0]}_{padded.phases[1]}"
    text = f"""{head(call.dtype, Activation.NONE)}{shape.macros}{_macros(call, padded)}
KERNEL void {symbol}(GLOBAL const ITEM *image_all, u64 image_at, GLOBAL ITEM *made_all,
    {", ".join(f"u64 {name}" for name in numbers)})
{{
    const i64 e = GROUP_ID(0);
    GLOBAL const ITEM *image = image_all + image_at + e * height * width;
    GLOBAL ITEM *made = made_all + e * PHASES_H * PHASES_W * plane_rows * pitch;
    for (i64 down = 0; down < PHASES_H; down++)
        for (i64 across = 0; across < PHASES_W; across++) {{
            const i64 shift = across - (i64)left;
            const i64 begin = MIN(shift < 0 ? CEIL_DIV(-shift, STRIDE_W) : 0, (i64)pitch);
            const i64 inside = CEIL_DIV(MAX((i64)width - shift, (i64)0), STRIDE_W);
            const i64 end = MAX(MIN(inside, (i64)pitch), begin);
            for (i64 row = 0; row < (i64)plane_rows; row++, made += pitch) {{
                const i64 y = row * STRIDE_H + down - (i64)top_pad;
                if (y < 0 || y >= (i64)height) {{
                    for (i64 x = 0; x < (i64)pitch; x++)
                        made[x] = 0;
                    continue;
                }}
                GLOBAL const ITEM *from = image + y * (i64)width + shift;
                for (i64 x = 0; x < begin; x++)
                    made[x] = 0;
                for (i64 x = begin; x < end; x++)
                    made[x] = from[x * STRIDE_W];
                for (i64 x = end; x < (i64)pitch; x++)
                    made[x] = 0;
            }}
        }}
    if (e + 1 == (i64)count)
        for (i64 x = 0; x < (i64)behind; x++)
            made[x] = 0;
}}
"""
    ways = (Access.READ, Access.VALUE, Access.WRITE, *(Access.VALUE for _ in numbers))
    at = u64(call.image.offset_bytes // call.dtype.size_bytes)
    args: tuple[TemplateArgument, ...] = (call.image.buffer, at, target)
    args += tuple(u64(value) for value in numbers.values())
    return TemplateLaunch(Template(symbol, text, ways), args, (channels, 1, 1), (1, 1, 1))


def convolving(
    call: ConvolutionCall, padded: Padded, source: str, vector_bytes: int
) -> TemplateLaunch:
    """Convolve padded images.

    Args:
        call: what is computed.
        padded: the layout of the images.
        source: their buffer.
        vector_bytes: length of the processor's vectors.
    """
    shape = shape_of(call)
    numbers = dict(shape.numbers)
    for unused in ("height", "width", "top_pad", "left"):
        del numbers[unused]
    numbers |= {"out_height": call.out_size[0], "pitch": padded.pitch}
    numbers["plane"] = padded.rows * padded.pitch
    lanes = lanes_of(call.dtype, vector_bytes)
    pixels = call.out_size[0] * padded.pitch
    tile, vectors = _tile(shape.rows, pixels, lanes)
    panels = -(-pixels // (lanes * vectors))
    rows = rows_of_item(shape, tile, panels)
    sizes = (lanes, vectors, tile, rows)
    of_padded = replace(call, image=PartCall(source, 0, padded.elements))
    symbol = "direct_" + symbol_of(of_padded, shape, (*padded.phases, *sizes))
    constants = {"LANES": lanes, "WIDE": lanes * vectors, "TILE": tile, "MOST": rows}
    shape = replace(
        shape,
        numbers=numbers,
        macros=shape.macros + _macros(call, padded) + _START,
    )
    text = begin_kernel(of_padded, shape, symbol, constants) + _body(of_padded, tile, vectors)
    template = Template(symbol, text, access(of_padded, numbers))
    items = panels * -(-shape.rows // rows) * shape.products
    return TemplateLaunch(template, arguments(of_padded, numbers), (items, 1, 1), (1, 1, 1))


def _tile(rows: int, pixels: int, lanes: int) -> tuple[int, int]:
    """Choose filters, and vectors of pixels, whose sums are in registers at the same time."""
    most = 8 if lanes >= 16 else 6
    tile = -(-rows // -(-rows // most))
    fewest = -(-pixels // lanes)
    for vectors in (4, 2) if tile <= 2 else (2,):
        if -(-fewest // vectors) * vectors <= _WORTH * fewest:
            return tile, vectors
    return tile, 1


def _body(call: ConvolutionCall, tile: int, vectors: int) -> str:
    cells = [(i, v) for i in range(tile) for v in range(vectors)]
    rows = [
        f"        GLOBAL const ITEM *a{i}_at = a + A_AT(MIN(i0 + top + {i}, rows - 1), 0);"
        for i in range(tile)
    ]
    sums = [f"        VECTOR s{i}_{v} = 0;" for i, v in cells]
    step = [f"                    VECTOR b{v} = FROM(from)[{v}];" for v in range(vectors)]
    for i in range(tile):
        step.append(f"                    SUM a{i} = a{i}_at[dy * KERNEL_W + dx];")
        step += [f"                    s{i}_{v} += a{i} * b{v};" for v in range(vectors)]
    further = [f"            a{i}_at += KERNEL_H * KERNEL_W;" for i in range(tile)]
    stores = [f"        AT(sums + {i} * WIDE)[{v}] = s{i}_{v};" for i, v in cells]
    return f"""    const u64 panels = CEIL_DIV(out_height * pitch, WIDE);
    const u64 item = GROUP_ID(0);
    const u64 first = item % panels * WIDE;
    const u64 i0 = item / panels % CEIL_DIV(rows, MOST) * MOST;
    const u64 z = item / panels / CEIL_DIV(rows, MOST);
    const u32 high = (u32)MIN((u64)MOST, rows - i0);
{starts(call)}
    __attribute__((aligned(64))) SUM sums[TILE * WIDE];
    for (u32 top = 0; top < high; top += TILE) {{
{chr(10).join(rows + sums)}
        GLOBAL const ITEM *planes = b + first;
        for (u64 channel = 0; channel < channels; channel++) {{
#pragma unroll
            for (u32 dy = 0; dy < KERNEL_H; dy++)
#pragma unroll
                for (u32 dx = 0; dx < KERNEL_W; dx++) {{
                    GLOBAL const ITEM *from = planes + TAP(dy, dx);
{chr(10).join(step)}
                }}
            planes += PHASES_H * PHASES_W * plane;
{chr(10).join(further)}
        }}
{chr(10).join(stores)}
        for (u32 row = 0; row < MIN((u32)TILE, high - top); row++) {{
            const u64 i = i0 + top + row;
            u64 y = first / pitch, x = first % pitch;
            for (u64 lane = 0; lane < WIDE && y < out_height; y++, x = 0) {{
                const u64 run = MIN(pitch - x, WIDE - lane);
                const u64 kept = x < out_width ? MIN(run, out_width - x) : 0;
                for (u64 e = 0; e < kept; e++) {{
                    const u64 j = y * out_width + x + e;
                    const SUM sum = sums[row * WIDE + lane + e];
                    {finished(call)}
                }}
                lane += run;
            }}
        }}
    }}
}}
"""
