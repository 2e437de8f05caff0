"""Templates for processors: a work item computes many rows of a panel of columns.

A panel of the second factor is packed into private memory, a part of its depth at a time, so that
it lies in the first cache and all loads from it are whole vectors, whatever its layout is. Then
tiles of some rows are computed in registers: one vector of the panel times one number of the first
factor, for each row. So the panel is packed once for up to `_MOST_ROWS` rows. The sums of a panel
stay in private memory while further parts of the depth are packed.

A product with few rows and a transposed second factor, as in a linear layer of batch 1, reads each
number once, so it is not packed: each column is a dot product of two rows in memory.
"""

from __future__ import annotations

from dandelion.blueprint.operation_calls import OperationCall
from dandelion.blueprint.operation_records import ElementType

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
)

_MOST_ROWS = 128
_DEPTH = 128
_DOT_ROWS = 4
_LEAST_ITEMS = 16
"""With fewer work items, each gets fewer rows."""


def on_processor(call: OperationCall, vector_bytes: int) -> TemplateLaunch:
    """Make the launch for a processor.

    Args:
        call: what is computed.
        vector_bytes: length of the processor's vectors.
    """
    shape = shape_of(call)
    lanes = lanes_of(call.dtype, vector_bytes)
    if shape.pack == "columns" and shape.rows <= _DOT_ROWS and shape.kind.startswith("gemm_n"):
        return _dots(call, shape, lanes)
    vectors = 2 if shape.columns > lanes else 1
    tile = 1
    while (
        tile < min(shape.rows, 8 if lanes >= 16 or call.dtype is ElementType.F64 else 6)
        and tile < 8
    ):
        tile *= 2
    if tile == 8 and lanes < 16:
        tile, vectors = 6, min(vectors, 2)
    panels = -(-shape.columns // (lanes * vectors))
    rows = rows_of_item(shape, tile, panels)
    sizes = (lanes, vectors, tile, rows)
    template = Template(
        "panels_" + symbol_of(call, shape, sizes), _panels(call, shape, *sizes),
        access(call, shape.numbers),
    )  # fmt: skip
    items = panels * -(-shape.rows // rows) * shape.products
    return TemplateLaunch(template, arguments(call, shape.numbers), (items, 1, 1), (1, 1, 1))


def lanes_of(dtype: ElementType, vector_bytes: int) -> int:
    """Return how many sums are in a vector."""
    return min(max(vector_bytes // (8 if dtype is ElementType.F64 else 4), 2), 16)


def rows_of_item(shape: Shape, tile: int, panels: int) -> int:
    """Rows of a work item: as many as there are, but so that there is work for all processors."""
    for rows in (_MOST_ROWS // tile * tile, _MOST_ROWS // 4 // tile * tile):
        items = panels * -(-shape.rows // rows) * shape.products
        if items >= _LEAST_ITEMS and shape.rows > rows // 4:
            return rows
    return tile


_VECTOR = """typedef SUM VECTOR __attribute__((ext_vector_type(LANES), aligned(sizeof(SUM))));
#define AT(sums) ((VECTOR *)(sums))
#define FROM(items) ((GLOBAL const VECTOR *)(items))
"""
"""PoCL calls `vload16` as a function, around which all sums in registers are stored and loaded."""


def begin_kernel(call: OperationCall, shape: Shape, symbol: str, constants: dict[str, int]) -> str:
    """Write the beginning of a source, up to the body of its kernel, with macros for constants."""
    names = [name for name, _ in operand_names(call)]
    macros = "".join(f"#define {name} {value}\n" for name, value in constants.items()) + _VECTOR
    return (
        f"{head(call.dtype, call.activation)}{shape.macros}{macros}"
        f"KERNEL void {symbol}({parameters(names, shape.numbers)})\n{{\n"
    )


def _panels(
    call: OperationCall, shape: Shape, lanes: int, vectors: int, tile: int, rows: int
) -> str:
    symbol = "panels_" + symbol_of(call, shape, (lanes, vectors, tile, rows))
    constants = {"LANES": lanes, "WIDE": lanes * vectors, "TILE": tile, "MOST": rows}
    begin = begin_kernel(call, shape, symbol, {**constants, "DEPTH": _DEPTH})
    cells = [(i, v) for i in range(tile) for v in range(vectors)]
    step = [f"                VECTOR b{v} = AT(from)[{v}];" for v in range(vectors)]
    for i in range(tile):
        step.append(f"                SUM a{i} = LOAD_ITEM(a{i}_at, k * next);")
        step += [f"                s{i}_{v} += a{i} * b{v};" for v in range(vectors)]
    rows_of = [
        f"            GLOBAL const ITEM *a{i}_at = a + A_AT(MIN(i0 + top + {i}, rows - 1), first);"
        for i in range(tile)
    ]
    loads = [f"            VECTOR s{i}_{v} = AT(sums + (top + {i}) * WIDE)[{v}];" for i, v in cells]
    stores = [f"            AT(sums + (top + {i}) * WIDE)[{v}] = s{i}_{v};" for i, v in cells]
    pack = _PACK[shape.pack]
    if shape.pack == "columns" and call.dtype in (ElementType.F32, ElementType.F64):
        pack = _transposing(lanes) + pack.replace("k = 0;", "k = whole;")
    return f"""{begin}    u64 panels = CEIL_DIV(columns, WIDE);
    u64 item = GROUP_ID(0);
    u64 j0 = item % panels * WIDE;
    u64 i0 = item / panels % CEIL_DIV(rows, MOST) * MOST;
    u64 z = item / panels / CEIL_DIV(rows, MOST);
    u32 wide = (u32)MIN((u64)WIDE, columns - j0);
    u32 high = (u32)MIN((u64)MOST, rows - i0);
{starts(call)}
    const u64 next = A_AT(0, 1) - A_AT(0, 0);
    __attribute__((aligned(64))) SUM panel[DEPTH * WIDE];
    __attribute__((aligned(64))) SUM sums[MOST * WIDE];
    for (u32 e = 0; e < CEIL_DIV(high, TILE) * TILE * WIDE; e++)
        sums[e] = 0;
{_START[shape.pack]}    for (u64 first = 0; first < depth; first += DEPTH) {{
        u32 count = (u32)MIN((u64)DEPTH, depth - first);
{pack}        for (u32 top = 0; top < high; top += TILE) {{
{chr(10).join(rows_of + loads)}
            SUM *from = panel;
            for (u32 k = 0; k < count; k++, from += WIDE) {{
{chr(10).join(step)}
            }}
{chr(10).join(stores)}
        }}
    }}
    for (u32 top = 0; top < high; top++) {{
        u64 i = i0 + top;
        if (wide == WIDE) {{
            for (u32 lane = 0; lane < WIDE; lane++) {{
                u64 j = j0 + lane;
                SUM sum = sums[top * WIDE + lane];
                {finished(call)}
            }}
        }} else {{
            for (u32 lane = 0; lane < wide; lane++) {{
                u64 j = j0 + lane;
                SUM sum = sums[top * WIDE + lane];
                {finished(call)}
            }}
        }}
    }}
}}
"""


_START = {
    "rows": "",
    "columns": "",
    "image": """    i32 ys[WIDE], xs[WIDE];
    for (u32 lane = 0; lane < WIDE; lane++) {
        u64 j = j0 + MIN(lane, wide - 1);
        ys[lane] = (i32)(j / out_width * STRIDE_H) - (i32)top_pad;
        xs[lane] = (i32)(j % out_width * STRIDE_W) - (i32)left;
    }
    i32 is_run = STRIDE_W == 1 && !CHANNELS_LAST && wide == WIDE && ys[0] == ys[WIDE - 1];
    u64 channel = 0;
    i32 dy = 0, dx = 0;
""",
}
_PACK = {
    "rows": """        for (u32 k = 0; k < count; k++) {
            GLOBAL const ITEM *from = b + B_AT(first + k, j0);
            if (wide == WIDE) {
                for (u32 lane = 0; lane < WIDE; lane++)
                    panel[k * WIDE + lane] = LOAD_ITEM(from, lane);
            } else {
                for (u32 lane = 0; lane < WIDE; lane++)
                    panel[k * WIDE + lane] = lane < wide ? LOAD_ITEM(from, lane) : (SUM)0;
            }
        }
""",
    "columns": """        for (u32 lane = 0; lane < WIDE; lane++) {
            GLOBAL const ITEM *from = b + B_AT(first, j0 + MIN(lane, wide - 1));
            for (u32 k = 0; k < count; k++)
                panel[k * WIDE + lane] = LOAD_ITEM(from, k);
        }
""",
    "image": """        for (u32 k = 0; k < count; k++) {
            i32 y0 = dy * STEP_H, x0 = dx * STEP_W;
            SUM *to = panel + k * WIDE;
            if (is_run && xs[0] + x0 >= 0 && xs[WIDE - 1] + x0 < (i32)width) {
                i32 y = ys[0] + y0;
                if (y >= 0 && y < (i32)height) {
                    GLOBAL const ITEM *from = b + PIXEL_AT(channel, y, xs[0] + x0);
                    for (u32 lane = 0; lane < WIDE; lane++)
                        to[lane] = LOAD_ITEM(from, lane);
                } else {
                    for (u32 lane = 0; lane < WIDE; lane++)
                        to[lane] = 0;
                }
            } else {
                for (u32 lane = 0; lane < WIDE; lane++) {
                    i32 y = ys[lane] + y0, x = xs[lane] + x0;
                    i32 is_inside = y >= 0 && y < (i32)height && x >= 0 && x < (i32)width;
                    SUM value = LOAD_ITEM(b, is_inside ? PIXEL_AT(channel, y, x) : 0);
                    to[lane] = is_inside ? value : (SUM)0;
                }
            }
            if (CHANNELS_LAST) {
                if (++channel == channels) {
                    channel = 0;
                    if (++dx == KERNEL_W) {
                        dx = 0;
                        dy++;
                    }
                }
            } else if (++dx == KERNEL_W) {
                dx = 0;
                if (++dy == KERNEL_H) {
                    dy = 0;
                    channel++;
                }
            }
        }
""",
}


def _transposed(lanes: int) -> list[str]:
    """C text that transposes a square, whose rows are the vectors ``v0``, ``v1`` and so on.

    Each step exchanges the halves of two vectors that are not on the diagonal, then quarters.
    """
    lines = []
    distance = lanes // 2
    while distance:
        low = [lanes + at - distance if at & distance else at for at in range(lanes)]
        high = [lanes + at if at & distance else at + distance for at in range(lanes)]
        for row in range(lanes):
            if row & distance:
                continue
            pair = f"v{row}, v{row + distance}"
            low_half = f"__builtin_shufflevector({pair}, {', '.join(map(str, low))})"
            high_half = f"__builtin_shufflevector({pair}, {', '.join(map(str, high))})"
            lines.append(
                f"{{ VECTOR low = {low_half}; v{row + distance} = {high_half}; v{row} = low; }}"
            )
        distance //= 2
    return lines


def _transposing(lanes: int) -> str:
    """Pack columns, as many items of as many columns at a time as a vector has."""
    at = "b + B_AT(first + k, j0 + MIN(part + {row}, wide - 1))"
    lines = [f"VECTOR v{row} = FROM({at.format(row=row)})[0];" for row in range(lanes)]
    lines += _transposed(lanes)
    lines += [f"AT(panel + (k + {row}) * WIDE + part)[0] = v{row};" for row in range(lanes)]
    return f"""        u32 whole = count / LANES * LANES;
        for (u32 k = 0; k < whole; k += LANES)
            for (u32 part = 0; part < WIDE; part += LANES) {{
{_indented(16, lines)}
            }}
"""


def _indented(spaces: int, lines: list[str]) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def _dots(call: OperationCall, shape: Shape, lanes: int) -> TemplateLaunch:
    """Dot products of rows of a with rows of b as it lies in memory.

    A work item has as many columns as a vector has lanes, and a vector of sums for each. At the end
    they are transposed, so that their lanes are added up with vectors, too.
    """
    symbol = "dots_" + symbol_of(call, shape, (lanes,))
    begin = begin_kernel(call, shape, symbol, {"LANES": lanes})

    def loaded(target: str, source: str) -> list[str]:
        if call.dtype in (ElementType.F32, ElementType.F64):
            return [f"VECTOR {target} = FROM({source} + k)[0];"]
        return [
            f"SUM {target}_lanes[LANES];",
            "for (u32 lane = 0; lane < LANES; lane++)",
            f"    {target}_lanes[lane] = LOAD_ITEM({source}, k + lane);",
            f"VECTOR {target} = AT({target}_lanes)[0];",
        ]

    columns = [
        f"GLOBAL const ITEM *b{at} = b + B_AT(0, MIN(j0 + {at}, columns - 1));"
        for at in range(lanes)
    ]
    step = loaded("x", "row")
    for at in range(lanes):
        step += [*loaded(f"y{at}", f"b{at}"), f"v{at} += x * y{at};"]
    rest = [f"sums[{at}] += LOAD_ITEM(row, k) * LOAD_ITEM(b{at}, k);" for at in range(lanes)]
    zeros = [f"VECTOR v{at} = 0;" for at in range(lanes)]
    text = f"""{begin}    const u64 parts = CEIL_DIV(columns, LANES);
    const u64 z = GROUP_ID(0) / parts;
    const u64 j0 = GROUP_ID(0) % parts * LANES;
{starts(call)}
{_indented(4, columns)}
    for (u64 i = 0; i < rows; i++) {{
        GLOBAL const ITEM *row = a + A_AT(i, 0);
{_indented(8, zeros)}
        u64 k = 0;
        for (; k + LANES <= depth; k += LANES) {{
{_indented(12, step)}
        }}
{_indented(8, _transposed(lanes))}
        __attribute__((aligned(64))) SUM sums[LANES];
        AT(sums)[0] = {" + ".join(f"v{at}" for at in range(lanes))};
        for (; k < depth; k++) {{
{_indented(12, rest)}
        }}
        for (u64 lane = 0; lane < MIN((u64)LANES, columns - j0); lane++) {{
            const u64 j = j0 + lane;
            const SUM sum = sums[lane];
            {finished(call)}
        }}
    }}
}}
"""
    items = -(-shape.columns // lanes) * shape.products
    template = Template(symbol, text, access(call, shape.numbers))
    return TemplateLaunch(template, arguments(call, shape.numbers), (items, 1, 1), (1, 1, 1))
