"""Kernel parameters read from binaries, and launches checked against them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dandelion.backends.gpu.code_info import CodeInfo, info_of
from dandelion.backends.gpu.launch_sizes import misfits
from hypothesis import given, settings
from hypothesis import strategies as st

import dandelion.blueprint as bp
from dandelion.blueprint.reading import read_config
from dandelion.cli.check import check_file
from dandelion.documents import gpu_function
from dandelion.errors import InvalidBlueprint, Problem
from dandelion.node import Node, Settings
from tests.fake_driver.compile import image

BINARIES = Path(__file__).parent / "binaries"
MIXED = (8, 8, 4, 4, 8, 1, 2, 8, 24)
CUDA = {"mixed": (*MIXED, 3), "none": (), "large": (4800, 8), "_Z5typedIsEvPT_S0_": (8, 2)}
NAMES = (
    "sizes.sm_75.cubin",
    "sizes.sm_120.cubin",
    "sizes.fatbin",
    "sizes.ptx",
    "sizes.gfx90a.hsaco",
)


def binary(name: str) -> bytes:
    return (BINARIES / name).read_bytes()


def bundle(*objects: tuple[str, bytes]) -> bytes:
    """The output of clang's bundler for objects of several targets."""
    names = [
        b"host-x86_64-unknown-linux-gnu-",
        *(b"hipv4-amdgcn-amd-amdhsa--" + t.encode() for t, _ in objects),
    ]
    contents = [b"", *(content for _, content in objects)]
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(names))
    start = len(head) + sum(24 + len(name) for name in names)
    table, body = b"", b""
    for name, content in zip(names, contents, strict=True):
        table += struct.pack("<QQQ", start + len(body), len(content), len(name)) + name
        body += content
    return head + table + body


# --- what binaries tell ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["sizes.sm_75.cubin", "sizes.sm_120.cubin", "sizes.fatbin", "sizes.ptx"]
)
def test_parameters_of_nvidias_kernels(name: str) -> None:
    info = info_of(binary(name))
    assert info.kernels == CUDA
    assert info.complete


def test_parameters_of_amds_kernels() -> None:
    expected = {"mixed": (*MIXED, 4), "none": ()}
    assert info_of(binary("sizes.gfx90a.hsaco")) == CodeInfo("gfx90a", False, False, expected, True)
    both = bundle(("gfx90a:xnack-", binary("sizes.gfx90a.hsaco")), ("gfx1100", b"CCOB compressed"))
    assert info_of(both).kernels == expected
    assert not info_of(both).complete, "the other one may have more"
    assert info_of(both, ("gfx90a",)).complete


def test_what_is_compressed_is_unknown() -> None:
    assert info_of(binary("sizes.compressed.fatbin")) == CodeInfo()


def test_objects_that_disagree_tell_nothing() -> None:
    first = image("hip", "gfx90a", b"", parameters={"k": [8, 4], "n": [4]})
    second = image("hip", "gfx1100", b"", parameters={"k": [8, 8], "n": [4]})
    info = info_of(bundle(("gfx90a", first), ("gfx1100", second)))
    assert info.kernels == {"k": None, "n": (4,)}
    assert info_of(bundle(("gfx90a", first), ("gfx1100", second)), ("gfx1100",)).kernels["k"] == (
        8,
        8,
    )


@pytest.mark.parametrize(
    ("declared", "sizes"),
    [
        ("", ()),
        (" ", ()),
        (".param .b64 a", (8,)),
        (".param .u64 .ptr .global .align 4 a, .param .f32 b", (8, 4)),
        (".param .align 8 .b8 a[24],\n\t.param .s8 b", (24, 1)),
        (".param .align 4 .f32 a[2][3] , .param .f16 b /* , .param .u64 c */", (24, 2)),
        ("// .param .u64 a,\n.param .b128 b", (16,)),
        (".param .texref a", None),
        (".param .u32 a .param .u32 b", None),
        (".reg .u32 a", None),
    ],
)
def test_parameters_in_ptx(declared: str, sizes: tuple[int, ...] | None) -> None:
    text = f".version 8.0\n.visible .entry k({declared})\n{{ ret; }}\n.entry l\n{{ ret; }}"
    assert info_of(text.encode()).kernels == {"k": sizes, "l": ()}


def test_a_kernel_that_cannot_be_read_hides_nothing_else() -> None:
    text = b".version 8.0\n.extern .func (.param .b64 r) malloc (.param .b64 p);\n.entry k("
    assert info_of(text) == CodeInfo("", False, True)


# --- malicious bytes --------------------------------------------------------


def mutants(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    source = random.Random(seed)
    edges = [0, 1, 2, 7, 8, 24, 64, 0xFF, 0x7FFF, 0xFFFF, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 4, 16))):
            size = source.choice((1, 2, 4, 8))
            near = source.choice((64, len(data)))
            at = source.randrange(min(near, len(data) - size))
            value = source.choice(edges) if source.random() < 0.6 else source.getrandbits(64)
            changed[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        yield bytes(changed[: source.randrange(len(data))] if source.random() < 0.1 else changed)


@pytest.mark.parametrize("name", [*NAMES, "bundle"])
def test_thousands_of_broken_files(name: str) -> None:
    hsaco = binary("sizes.gfx90a.hsaco")
    whole = bundle(("gfx90a", hsaco), ("gfx1100", hsaco)) if name == "bundle" else binary(name)
    read = unread = 0
    for data in mutants(whole, len(name), 1500):
        info = info_of(data, ("gfx90a",) if data[0] & 1 else ())
        read += bool(info.kernels)
        unread += not info.kernels
        for sizes in info.kernels.values():
            assert sizes is None or all(0 <= size <= 2**40 for size in sizes)
    assert read > 50
    assert unread > 50 or name == "sizes.ptx"


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(
        [
            b"",
            b"\x7fELF\2\1\1",
            b"__CLANG_OFFLOAD_BUNDLE__",
            struct.pack("<I", 0xBA55ED50),
            b".version 8.0 .entry ",
        ]
    ),
    st.binary(max_size=400),
)
def test_any_bytes_are_read_or_unknown(head: bytes, rest: bytes) -> None:
    info_of(head + rest)


def test_metadata_nested_without_end() -> None:
    whole = binary("sizes.gfx90a.hsaco")
    start = whole.index(b"\xaeamdhsa.kernels") + 15
    nested = whole[:start] + b"\x91" * (len(whole) - start)
    assert info_of(nested).kernels == {}


def overlapping_sections(count: int, size: int) -> bytes:
    """An ELF file whose sections are all as large as the file."""
    table = struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, 0, 2**40, 0, 0, 0, 24) * count
    head = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        b"\x7fELF",
        2,
        1,
        1,
        65,
        8,
        2,
        190,
        1,
        0,
        0,
        64,
        0,
        64,
        0,
        0,
        64,
        count,
        0,
    )
    return head + table + bytes(size)


LARGE = 2_000_000


@pytest.mark.parametrize(
    "data",
    [
        overlapping_sections(65_535, LARGE),
        b"__CLANG_OFFLOAD_BUNDLE__"
        + struct.pack("<Q", 200)
        + struct.pack("<QQQ", 0, 2**60, 0) * 200
        + bytes(LARGE),
        b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 2**64 - 1) + bytes(LARGE),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**60)
        + struct.pack("<HHIQ", 2, 1, 16, 0) * (LARGE // 16),
        b".version 8.0 " + b"/*" * (LARGE // 2),
        b".version 8.0 " + b".entry a(" * (LARGE // 9),
        b".version 8.0 " + b".func " * (LARGE // 6),
        b".version 8.0 " + b".ptr " * (LARGE // 5),
        b".version 8.0 .entry a(.param .u8 " + b" " * LARGE + b")",
        b".version 8.0 .entry a(.param .u8 a" + b"[999999999]" * (LARGE // 11) + b")",
        b".version 8.0 .entry a(" + b".param .u8 a," * (LARGE // 13) + b")",
    ],
    ids=range(11),
)
@pytest.mark.timeout(20)
def test_files_made_to_take_long_or_much(data: bytes) -> None:
    assert not info_of(data).kernels.get("a")


# --- launches -------------------------------------------------------------------------------


def blueprint(name: str, args: list[Any], kernel: str = "mixed", arch: str = "") -> dict[str, Any]:
    launch = {"ExecKernel": [kernel, args, {}]}
    code = {"path": name, "backend": "hip", "arch": arch} if arch else name
    return {
        "modules": {"m": code},
        "kernels": {kernel: "m"},
        "blueprint": {
            "inputs": ["x"],
            "buffers": {"y": 4},
            "outputs": ["y"],
            "control_flow": [{"Repeat": [2, [launch]]}],
        },
    }


def found(name: str, args: list[Any], kernel: str = "mixed") -> list[Problem]:
    config, problems = read_config(json.dumps(blueprint(name, args, kernel)))
    assert not problems
    return misfits(config, {name: binary(name)})


PTR = {"Ptr": "x"}
GOOD: list[Any] = [
    PTR, {"u64": 0}, {"f32": 1}, {"u32": {"Sizeof": "x"}}, {"Sizeof": "x"}, {"i8": 1}, {"f16": 1},
    {"f64": 1}, {"bytes": "A" * 32}, {"bytes": "AAAA"},
]  # fmt: skip


def with_argument(index: int, argument: Any, name: str) -> list[Any]:
    """Arguments that fit, except one."""
    args = [*GOOD[:9], {"u32": 64}] if name.endswith("hsaco") else list(GOOD)
    args[index] = argument
    return args


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("index", "argument", "expected", "shown"),
    [
        (3, {"Constant": 5}, '{"i32": 5} or {"u32": 5} or {"f32": 5}', '8 bytes, {"Constant": 5}'),
        (3, {"Constant": -5}, '{"i32": -5} or {"f32": -5}', '8 bytes, {"Constant": -5}'),
        (3, {"Sizeof": "x"}, '{"i32": {"Sizeof": "x"}} or {"u32": {"Sizeof": "x"}}',
         '8 bytes, {"Sizeof": "x"}'),
        (2, {"f64": 0.5}, '{"f32": 0.5}', '8 bytes, {"f64": 0.5}'),
        (2, PTR, '{"i32": ...} or {"u32": ...} or {"f32": ...}', '8 bytes, {"Ptr": "x"}'),
        (0, {"u32": 1}, '{"Constant": 1} or {"u64": 1} or {"f64": 1} or {"Ptr": ...}',
         '4 bytes, {"u32": 1}'),
        (5, {"i16": 1}, '{"i8": 1} or {"u8": 1}', '2 bytes, {"i16": 1}'),
        (8, {"bytes": "AAAA"}, '{"bytes": ...}, base64 of 24 bytes', '3 bytes, {"bytes": ...}'),
        (8, PTR, '{"bytes": ...}, base64 of 24 bytes', '8 bytes, {"Ptr": "x"}'),
    ],
)  # fmt: skip
def test_an_argument_of_another_size(
    name: str, index: int, argument: Any, expected: str, shown: str
) -> None:
    assert found(name, with_argument(0, PTR, name)) == []
    (problem,) = found(name, with_argument(index, argument, name))
    assert problem.where == f"blueprint.control_flow[0].actions[0].args[{index}]"
    assert problem.code == "argument"
    assert f"parameter {index} of kernel 'mixed' in '{name}'" in problem.message
    assert (problem.expected, problem.found) == (expected, shown)


@pytest.mark.parametrize("name", NAMES)
def test_too_few_and_too_many_arguments(name: str) -> None:
    for args, kernel in (([PTR], "mixed"), ([PTR], "none")):
        (problem,) = found(name, args, kernel)
        assert (problem.code, problem.where) == (
            "arity",
            "blueprint.control_flow[0].actions[0].args",
        )
        assert problem.found == "1"
        assert problem.expected.startswith(
            "0 arguments" if kernel == "none" else "10 arguments, of 8, 8, 4"
        )
    assert found(name, [], "none") == []


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_that_is_not_there(name: str) -> None:
    (problem,) = found(name, [PTR], "mixt")
    assert (problem.code, problem.where, problem.nearest) == (
        "unknown-kernel",
        "kernels.mixt",
        "mixed",
    )
    (problem,) = found(name, [PTR], "zzz")
    assert "mixed or none" in problem.expected


def test_where_a_binary_does_not_tell_nothing_is_claimed() -> None:
    assert found("sizes.compressed.fatbin", [PTR], "anything") == []


def test_the_launches_of_each_alternative_are_checked() -> None:
    document = blueprint("a.hsaco", [PTR, {"u32": 1}], "k")
    document["modules"]["m"] = [{"path": "b.cl", "backend": "opencl"}, "a.hsaco", "b.hsaco"]
    files = {
        "b.cl": b"kernel void k(global int *x, uint n) {}",
        "a.hsaco": image("hip", "gfx90a", b"", parameters={"k": [8, 4]}),
        "b.hsaco": image("hip", "gfx1100", b"", parameters={"k": [8, 8]}),
    }
    config = bp.parse_blueprint(json.dumps(document), files)
    (problem,) = misfits(config, files)
    assert "'b.hsaco'" in problem.message


def test_registration_refuses_them_without_a_device() -> None:
    name = "sizes.gfx90a.hsaco"
    settings_ = Settings(backends=("null",), arena_bytes=1 << 20)
    with Node(settings_) as node:
        for index, argument in ((3, {"Constant": 5}), (0, PTR)):
            text = json.dumps(blueprint(name, with_argument(index, argument, name)))
            document = gpu_function(
                "f", text, inputs=["x"], outputs=["y"], files={name: BINARIES / name}
            )
            if index:
                with pytest.raises(InvalidBlueprint, match=r"args\[3\].*expected .*i32"):
                    node.register(document)
            else:
                node.register(document)


def test_the_command_line_checks_them_beside_a_blueprint(tmp_path: Path) -> None:
    name = "sizes.sm_75.cubin"
    (tmp_path / name).write_bytes(binary(name))
    path = tmp_path / "b.json"
    path.write_text(json.dumps(blueprint(name, with_argument(3, {"Constant": 5}, name))))
    (problem,) = check_file(path).problems
    assert problem.where == f"{path}: blueprint.control_flow[0].actions[0].args[3]"
    path.write_text(json.dumps(blueprint(name, with_argument(3, {"i32": 5}, name))))
    assert check_file(path).problems == ()
