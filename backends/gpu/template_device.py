"""Templates for devices whose blocks have many threads, and what goes before and after a library.

A block computes a tile of the result. Its threads load tiles of both factors into local memory, a
few steps of the depth at a time, and each thread computes some elements in registers.
"""

from __future__ import annotations

from dandelion.blueprint import Access
from dandelion.blueprint.operation_calls import (
    ConvolutionCall,
    GemmCall,
    MatrixCall,
    OperationCall,
    PartCall,
)
from dandelion.blueprint.operation_records import ImageLayout

from .templates import (
    Shape,
    Template,
    TemplateLaunch,
    access,
    arguments,
    finished,
    head,
    operand_names,
    parameters,
    shape_of,
    starts,
    symbol_of,
    u64,
)

_THREADS = 256
_TILES = ((128, 128, 8), (64, 64, 16), (32, 32, 32), (16, 16, 32))
"""Rows, columns and depth of a tile, largest first."""
_ENOUGH_BLOCKS = 128
"""A larger tile is only used if there are so many of it."""


def on_device(call: OperationCall) -> TemplateLaunch:
    """Make the launch for a device with many threads."""
    shape = shape_of(call)
    tile = next((t for t in _TILES if _blocks(shape, t) >= _ENOUGH_BLOCKS), _TILES[2])
    if min(shape.rows, shape.columns) <= tile[0] // 2:
        tile = _TILES[3]
    template = Template(
        "tiles_" + symbol_of(call, shape, tile), _tiles(call, shape, tile),
        access(call, shape.numbers),
    )  # fmt: skip
    grid = (_blocks(shape, tile), 1, 1)
    return TemplateLaunch(template, arguments(call, shape.numbers), grid, (_THREADS, 1, 1))


def _blocks(shape: Shape, tile: tuple[int, int, int]) -> int:
    return -(-shape.rows // tile[0]) * -(-shape.columns // tile[1]) * shape.products


_LOAD_B = {
    "rows": """            u32 k = e / WIDE, j = e % WIDE;
            SUM value = 0;
            if (first + k < depth && j0 + j < columns)
                value = LOAD_ITEM(b, B_AT(first + k, j0 + j));
            right[k][j] = value;
""",
    "columns": """            u32 k = e % DEEP, j = e / DEEP;
            SUM value = 0;
            if (first + k < depth && j0 + j < columns)
                value = LOAD_ITEM(b, B_AT(first + k, j0 + j));
            right[k][j] = value;
""",
    "image": """            u32 k = e / WIDE, j = e % WIDE;
            SUM value = 0;
            if (first + k < depth && j0 + j < columns) {
                u32 d = (u32)(first + k), at = (u32)(j0 + j);
#if CHANNELS_LAST
                u32 channel = d % (u32)channels, dx = d / (u32)channels % KERNEL_W;
                u32 dy = d / (u32)channels / KERNEL_W;
#else
                u32 dx = d % KERNEL_W, dy = d / KERNEL_W % KERNEL_H;
                u32 channel = d / (KERNEL_W * KERNEL_H);
#endif
                i64 y = (i64)(at / (u32)out_width) * STRIDE_H + dy * STEP_H - (i64)top_pad;
                i64 x = (i64)(at % (u32)out_width) * STRIDE_W + dx * STEP_W - (i64)left;
                if (y >= 0 && y < (i64)height && x >= 0 && x < (i64)width)
                    value = LOAD_ITEM(b, PIXEL_AT(channel, y, x));
            }
            right[k][j] = value;
""",
}


def _tiles(call: OperationCall, shape: Shape, tile: tuple[int, int, int]) -> str:
    high, wide, deep = tile
    side = 16  # threads in a row of the block
    constants = {
        "HIGH": high, "WIDE": wide, "DEEP": deep, "SIDE": side, "THREADS": _THREADS,
        "ROWS": high // side, "COLUMNS": wide // side,
    }  # fmt: skip
    macros = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    names = [name for name, _ in operand_names(call)]
    symbol = "tiles_" + symbol_of(call, shape, tile)
    a_is_transposed = isinstance(call, GemmCall) and call.a.transposed
    place = "k = e / HIGH, i = e % HIGH" if a_is_transposed else "k = e % DEEP, i = e / DEEP"
    return f"""{head(call.dtype, call.activation)}{shape.macros}{macros}
KERNEL void {symbol}({parameters(names, shape.numbers)})
{{
    LOCAL SUM left_tile[DEEP][HIGH + 1];
    LOCAL SUM right[DEEP][WIDE + 1];
    u64 across = CEIL_DIV(columns, WIDE);
    u64 group = GROUP_ID(0);
    u64 j0 = group % across * WIDE;
    u64 i0 = group / across % CEIL_DIV(rows, HIGH) * HIGH;
    u64 z = group / across / CEIL_DIV(rows, HIGH);
    u32 thread = LOCAL_ID(0);
    u32 tx = thread % SIDE, ty = thread / SIDE;
{starts(call)}
    SUM sums[ROWS][COLUMNS];
    for (u32 p = 0; p < ROWS; p++)
        for (u32 q = 0; q < COLUMNS; q++)
            sums[p][q] = 0;
    for (u64 first = 0; first < depth; first += DEEP) {{
        for (u32 e = thread; e < HIGH * DEEP; e += THREADS) {{
            u32 {place};
            SUM value = 0;
            if (first + k < depth && i0 + i < rows)
                value = LOAD_ITEM(a, A_AT(i0 + i, first + k));
            left_tile[k][i] = value;
        }}
        for (u32 e = thread; e < WIDE * DEEP; e += THREADS) {{
{_LOAD_B[shape.pack]}        }}
        BARRIER();
        for (u32 k = 0; k < DEEP; k++) {{
            SUM x[ROWS], y[COLUMNS];
            for (u32 p = 0; p < ROWS; p++)
                x[p] = left_tile[k][ty + p * SIDE];
            for (u32 q = 0; q < COLUMNS; q++)
                y[q] = right[k][tx + q * SIDE];
            for (u32 p = 0; p < ROWS; p++)
                for (u32 q = 0; q < COLUMNS; q++)
                    sums[p][q] += x[p] * y[q];
        }}
        BARRIER();
    }}
    for (u32 p = 0; p < ROWS; p++) {{
        u64 i = i0 + ty + p * SIDE;
        for (u32 q = 0; q < COLUMNS; q++) {{
            u64 j = j0 + tx + q * SIDE;
            SUM sum = sums[p][q];
            if (i < rows && j < columns) {{
                {finished(call)}
            }}
        }}
    }}
}}
"""


def unfolding(call: ConvolutionCall, target: str) -> TemplateLaunch:
    """Write the pixels that each result of a convolution needs one after the other.

    Args:
        call: of one group.
        target: buffer that gets, for each image, a matrix ``[depth, pixels]``, with channels last
            ``[pixels, depth]``.
    """
    assert call.groups == 1, "groups are not unfolded"
    shape = shape_of(call)
    names = ("channels", "height", "width", "out_width", "top_pad", "left")
    numbers = {name: shape.numbers[name] for name in names}
    numbers |= {"groups": 1, "depth": call.depth, "pixels": call.pixels}
    count = call.batch * call.depth * call.pixels
    numbers["count"] = count
    index = "u32" if count < 2**31 else "u64"
    symbol = f"unfold_{shape.kind}_{call.dtype.value}_{index}"
    order = (
        "d = e % depth, j = e / depth % pixels, z = e / depth / pixels"
        if call.layout is ImageLayout.NHWC
        else "j = e % pixels, d = e / pixels % depth, z = e / pixels / depth"
    )
    text = f"""{head(call.dtype, call.activation)}{shape.macros}
KERNEL void {symbol}(GLOBAL const ITEM *b_all, u64 b_at, GLOBAL ITEM *made,
    {", ".join(f"u64 {name}_given" for name in numbers)})
{{
    {index} {", ".join(f"{name} = ({index}){name}_given" for name in numbers)};
    {index} e = ({index})GLOBAL_ID(0);
    if (e >= count)
        return;
    {index} {order};
    GLOBAL const ITEM *b = b_all + b_at + B_START((u64)z);
#if CHANNELS_LAST
    {index} channel = d % channels, dx = d / channels % KERNEL_W, dy = d / channels / KERNEL_W;
#else
    {index} dx = d % KERNEL_W, dy = d / KERNEL_W % KERNEL_H, channel = d / (KERNEL_W * KERNEL_H);
#endif
    i64 y = (i64)(j / out_width) * STRIDE_H + dy * STEP_H - (i64)top_pad;
    i64 x = (i64)(j % out_width) * STRIDE_W + dx * STEP_W - (i64)left;
    ITEM value = 0;
    if (y >= 0 && y < (i64)height && x >= 0 && x < (i64)width)
        value = b[PIXEL_AT(channel, y, x)];
    made[e] = value;
}}
"""
    ways = (Access.READ, Access.VALUE, Access.WRITE, *(Access.VALUE for _ in numbers))
    at = u64(call.image.offset_bytes // call.dtype.size_bytes)
    args: tuple[str | bytes, ...] = (call.image.buffer, at, target)
    args += tuple(u64(value) for value in numbers.values())
    grid = (-(-count // _THREADS), 1, 1)
    return TemplateLaunch(Template(symbol, text, ways), args, grid, (_THREADS, 1, 1))


def finishing(call: GemmCall, adds_c: bool = False) -> TemplateLaunch:
    """Add the bias to a result and apply the activation.

    Args:
        call: whose product, without these, is in its place.
        adds_c: add the matrix c too.
    """
    c = call.c if adds_c else None
    count = call.batch * call.m * call.n
    symbol = f"finish_{call.dtype.value}_{call.activation.value}_{call.bias_axis.value}"
    symbol += ("" if call.bias else "_plain") + ("_c" if c else "")
    place = "i" if call.bias_axis.value == "rows" else "j"
    add = f" + LOAD_ITEM(bias_all + bias_at, {place})" if call.bias else ""
    add += " + LOAD_ITEM(c_all + c_at, z * c_next + i * c_ld + j)" if c else ""
    before = "GLOBAL const ITEM *bias_all, u64 bias_at, " if call.bias else ""
    before += "GLOBAL const ITEM *c_all, u64 c_at, u64 c_ld, u64 c_next, " if c else ""
    text = f"""{head(call.dtype, call.activation)}
KERNEL void {symbol}({before}GLOBAL ITEM *out_all, u64 out_at, u64 rows, u64 columns, u64 ld,
    u64 next, u64 count)
{{
    u64 e = GLOBAL_ID(0);
    if (e >= count)
        return;
    u64 j = e % columns, i = e / columns % rows, z = e / columns / rows;
    GLOBAL ITEM *out = out_all + out_at + z * next + i * ld + j;
    SUM v = LOAD_ITEM(out, 0){add};
    STORE_ITEM(out, 0, ACTIVATED(v));
}}
"""
    item = call.dtype.size_bytes
    args: list[str | bytes] = []
    ways: list[Access] = []

    def operand(given: PartCall | MatrixCall, way: Access, *numbers: int) -> None:
        args.extend([given.buffer, *map(u64, (given.offset_bytes // item, *numbers))])
        ways.extend([way, Access.VALUE, *(Access.VALUE for _ in numbers)])

    if call.bias is not None:
        operand(call.bias, Access.READ)
    if c is not None:
        operand(c, Access.READ, c.ld, c.batch_stride)
    out = call.out
    operand(out, Access.BOTH, call.m, call.n, out.ld, out.batch_stride, count)
    grid = (-(-count // _THREADS), 1, 1)
    return TemplateLaunch(Template(symbol, text, tuple(ways)), tuple(args), grid, (_THREADS, 1, 1))
