"""Facts from the bytes of modules, includes of sources, and the cache of compiled code."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dandelion.backends.gpu import cubin
from dandelion.backends.gpu.code_info import CodeInfo, info_of, part_for
from dandelion.backends.gpu.compiling import CodeCache, default_folder
from dandelion.backends.gpu.elf_sections import sections
from dandelion.backends.gpu.source import CodeFormat, LoadedCode, choose
from dandelion.backends.gpu.source_check import checked_source

from dandelion.blueprint import Code, Module
from dandelion.blueprint.signatures import signatures
from dandelion.errors import InvalidBlueprint, InvalidFunction
from tests.fake_driver.compile import image

PTX = b""".version 8.0
.target sm_80
.visible .entry k(.param .u64 .ptr .global .align 4 k_param_0)
{
    ld.global.u32 %r1, [%rd1];
    cvta.to.global.u64 %rd2, %rd1;
}
"""


# --- code info ------------------------------------------------------------------------------


def test_info_of_cubins() -> None:
    assert info_of(image("cuda", "sm_86", b"")) == CodeInfo("sm_86", variables=False)
    assert info_of(image("cuda", "sm_90", b"", variables=True)).variables


def test_variables_of_cubins_are_listed() -> None:
    named = {"counter": 4, "table": 23, "other": 7}
    info = info_of(image("cuda", "sm_90", b"", variables=True, named=named))
    wanted = {"counter": (4, 4), "table": (23, 24), "other": (7, 8)}
    assert (info.variables, info.listed) == (True, wanted)
    assert not info_of(image("cuda", "sm_90", b"")).listed
    assert not info_of(image("hip", "gfx90a", b"", variables=True)).listed


def _symbols(data: bytes) -> tuple[int, int]:
    """The places of the header of the section of symbols, and of the first real symbol."""
    table, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    for at in range(table, table + 64 * count, 64):
        if struct.unpack_from("<I", data, at + 4)[0] == 2:
            return at, struct.unpack_from("<Q", data, at + 24)[0] + 24
    raise AssertionError("no symbols")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda at: (at + 4, "<B", 2), "a function among the variables"),
        (lambda at: (at + 4, "<B", 0), "a symbol of no type"),
        (lambda at: (at + 6, "<H", 0), "one that lies elsewhere: memory before the second"),
        (lambda at: (at + 8, "<Q", 4), "memory before the first one"),
        (lambda at: (at + 16, "<Q", 60), "they overlap"),
        (lambda at: (at + 16, "<Q", 4), "memory between them"),
        (lambda at: (at + 16, "<Q", 0), "one without a size"),
        (lambda at: (at + 16, "<Q", 1 << 63), "a size beyond all"),
        (lambda at: (at + 24, "<I", None), "two of one name"),
        (lambda at: (at + 48 + 16, "<Q", 2), "memory behind the last one"),
    ],
)
def test_variables_that_are_not_all_memory_are_not_listed(
    change: Callable[[int], tuple[int, str, int | None]], why: str
) -> None:
    named = {"counter": 20, "table": 24, "other": 24}
    data = bytearray(image("cuda", "sm_90", b"", variables=True, named=named))
    _, first = _symbols(data)
    at, layout, value = change(first)
    given = struct.unpack_from("<I", data, first)[0] if value is None else value
    struct.pack_into(layout, data, at, given)
    info = info_of(bytes(data))
    assert (info.variables, info.listed) == (True, {}), why


def test_variables_of_two_tables_or_of_no_section_are_not_listed() -> None:
    whole = image("cuda", "sm_90", b"", variables=True, named={"a": 8, "b": 8})
    assert info_of(whole).listed
    header, first = _symbols(whole)
    table = struct.unpack_from("<Q", whole, 40)[0]
    for at, layout, value in (
        (first + 4, "<BBH", (5, 0, 0xFFF2)),  # memory that is common to modules
        (table + 64 * 2 + 4, "<I", (2,)),  # another section says that it is a table
        (header, "<I", (1,)),  # the table has the name of another section
        (header + 40, "<I", (1,)),  # its names are elsewhere
    ):
        data = bytearray(whole)
        struct.pack_into(layout, data, at, *value)
        assert not info_of(bytes(data)).listed


def test_memory_of_an_unknown_kind_is_variable() -> None:
    whole = image("cuda", "sm_90", b"", variables=True, named={"a": 8})
    table, count = struct.unpack_from("<Q", whole, 40)[0], struct.unpack_from("<H", whole, 60)[0]
    assert info_of(whole).listed
    for flags, name, variables in ((2, None, True), (0, None, True), (3, 1, True), (0, 1, False)):
        data = bytearray(whole)
        struct.pack_into("<Q", data, table + 64 * 3 + 8, flags)
        if name is not None:
            struct.pack_into("<I", data, table + 64 * 3, name)
        assert info_of(bytes(data)).variables is variables
    data = bytearray(whole)
    struct.pack_into("<H", data, 60, 0)
    assert count
    assert info_of(bytes(data)).variables, "without sections nothing is known"


def test_what_newer_files_have_twice_counts_once() -> None:
    found = sections(image("cuda", "sm_100", b"", variables=True, named={"a": 8}))
    (place,) = cubin.places_of_variables(found)
    one = found[place]
    again = replace(one, name=b".nv.merc" + one.name)
    assert cubin.places_of_variables([*found, again]) == {place}
    larger = replace(again, size_bytes=one.size_bytes + 8)
    assert cubin.places_of_variables([*found, larger]) == {place, len(found)}
    constants = replace(again, name=b".nv.merc.nv.constant.user")
    assert cubin.places_of_variables([*found, constants]) == {place}


def test_few_sections_with_variables_are_listed() -> None:
    found = sections(image("cuda", "sm_90", b"", variables=True, named={"a": 8}))
    (place,) = cubin.places_of_variables(found)
    assert cubin.variables(found, frozenset({place})) == {"a": (8, 8)}
    many = found + [found[place]] * 16
    with pytest.raises(ValueError, match="too many sections"):
        cubin.variables(many, cubin.places_of_variables(many))


def test_a_variable_that_shares_its_name_with_a_constant_is_not_listed() -> None:
    data = bytearray(image("cuda", "sm_90", b"", variables=True, named={"a": 8, "b": 8}))
    header, first = _symbols(data)
    size = struct.unpack_from("<Q", data, header + 32)[0]
    extra = bytearray(data[first : first + 24])
    struct.pack_into("<H", extra, 6, 1)  # in another section
    moved = bytes(data[first - 24 : first - 24 + size]) + bytes(extra)
    struct.pack_into("<QQ", data, header + 24, len(data), len(moved))
    info = info_of(bytes(data) + moved)
    assert (info.variables, info.listed) == (True, {})


def test_cubins_of_older_compilers_have_their_number_elsewhere() -> None:
    data = bytearray(image("cuda", "sm_86", b""))
    data[8] = 7
    data[48:52] = struct.pack("<I", 0x560056)
    assert info_of(bytes(data)).arch == "sm_86"


def test_info_of_amds_code_objects() -> None:
    data = image("hip", "gfx90a", b"", parameters={"k": [8, 4], "n": []})
    assert info_of(data) == CodeInfo("gfx90a", False, kernels={"k": (8, 4), "n": ()}, complete=True)
    assert info_of(image("hip", "gfx90a", b"", variables=True)).variables


def test_the_device_takes_its_own_object_of_a_bundle() -> None:
    objects = [
        (b"host-x86_64-unknown-linux--", b""),
        (b"hipv4-amdgcn-amd-amdhsa--gfx1100", image("hip", "gfx1100", b"", parameters={"k": [4]})),
        (b"hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-", image("hip", "gfx90a", b"", variables=True)),
    ]
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(objects))
    start = len(head) + sum(24 + len(name) for name, _ in objects)
    table, body = b"", b""
    for name, data in objects:
        table += struct.pack("<QQQ", start + len(body), len(data), len(name)) + name
        body += data
    bundle = head + table + body
    assert info_of(bundle, ("gfx1100",)).kernels == {"k": (4,)}
    assert info_of(bundle, ("gfx90a",)).variables
    assert info_of(bundle, ("gfx906",)).arch == "gfx1100 gfx90a"


def fatbin(*parts: tuple[int, bytes]) -> bytes:
    body = b"".join(struct.pack("<HHIQ", kind, 1, 16, len(d)) + d for kind, d in parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_info_of_fat_binaries() -> None:
    clean, stateful = (image("cuda", "sm_90", b"", variables=v) for v in (False, True))
    assert not info_of(fatbin((2, clean), (2, clean))).variables
    assert info_of(fatbin((2, clean), (2, stateful))).variables
    assert info_of(fatbin((2, clean), (1, b"compressed"))).variables, "unknown"
    assert info_of(fatbin((2, b"compressed"))).variables


def test_a_device_takes_its_own_binary_of_a_fat_binary() -> None:
    newer, older, twin = (image("cuda", arch, b"") for arch in ("sm_90", "sm_80", "sm_90"))
    text = (1, b"compressed")
    archs = ("sm_90", "sm_90a", "sm_89")
    for parts, wanted in (
        ([(2, older), (2, newer), text], newer),
        ([(2, newer)], newer),
        ([(2, newer), (2, twin)], None),
        ([(2, older), text], None),
        ([(2, newer), (2, b"compressed")], None),
        ([text], None),
    ):
        whole = fatbin(*parts)
        assert part_for(whole, archs) == (wanted or whole)
    assert part_for(fatbin((2, older)), ("sm_86", "sm_80")) == older
    for whole in (newer, b"", b"text", fatbin((2, newer))[:-700]):
        assert part_for(whole, archs) == whole


def test_info_of_ptx() -> None:
    assert info_of(PTX) == CodeInfo("", False, kernels={"k": (8,)}, complete=True)
    for variable in (
        b".global .align 4 .u32 counter;",
        b".visible .global .u32 x = 7;",
        b"\t.global\t.b8 a[4];",
    ):
        assert info_of(PTX + variable).variables, variable
    assert info_of(PTX + b".extern .func (.param .b64 r) malloc\n(\n.param .b64 p\n);").allocates


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_bytes_that_are_cut_off_are_unknown(cut: int) -> None:
    whole = image("hip", "gfx90a", b"payload" * 9, variables=True, parameters={"k": [8]})
    info_of(whole[:cut])
    info_of(fatbin((2, whole))[:cut])
    info_of(b"__CLANG_OFFLOAD_BUNDLE__" + whole[:cut])


# --- choosing and including -----------------------------------------------------------------


def test_what_there_is_and_what_is_wanted_are_named() -> None:
    module = Module("linear", (Code("a.cubin", "cuda", "sm_80"), Code("b.cubin", "cuda", "sm_86")))
    files = {"a.cubin": b"", "b.cubin": b""}
    chosen = choose(module, files, "cuda", (CodeFormat.CUBIN,), ("sm_86", "sm_80"))
    assert chosen.name == "b.cubin"
    with pytest.raises(
        InvalidBlueprint, match="it has code for sm_80, sm_86, this device is sm_90"
    ):
        choose(module, files, "cuda", (CodeFormat.CUBIN,), ("sm_90",))


@pytest.mark.parametrize(
    "name", ["k.c", "kernels/k.c", "../k.c", "k (1).c", "k@2.c", "ké.c", 'k".c', "k\\.c", "k\n.c"]
)
def test_a_portable_source_may_have_any_name(name: str) -> None:
    source = b'#include "dandelion.h"\nKERNEL void k(GLOBAL f32 *x) { x[0] = 1; }\n'
    module = Module("k", (Code(name, "", ""),))
    code = choose(module, {name: source}, "opencl", (CodeFormat.PORTABLE,))
    checked_source(code)
    assert code.name == name


@pytest.mark.parametrize(
    "text",
    [
        "#include <cuda_fp16.h>",
        "#include <cooperative_groups/reduce.h>",
        "int include = 1; // #1 include",
        '/* #include "dandelion.h" */',
    ],
)
def test_headers_of_the_compiler_may_be_included(text: str) -> None:
    checked_source(LoadedCode("k.cu", CodeFormat.CUDA, text.encode(), "d"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        "#include <../secret>",
        "#include <a/../../secret>",
        '#inc\\\nlude "/etc/passwd"',
        '#inc??/\nlude "/etc/passwd"',
        '??=include "/etc/passwd"',
        '%:include "/etc/passwd"',
        '# /* */ include "/etc/passwd"',
        '#include_next "x"',
        '#define X "/etc/passwd"\n#include X',
        '#embed "/etc/passwd"',
        '#if __has_include("/etc/passwd")',
    ],
)
def test_other_files_may_not(text: str) -> None:
    with pytest.raises(InvalidFunction, match="headers"):
        checked_source(LoadedCode("k.cu", CodeFormat.CUDA, text.encode(), "d"))  # type: ignore[arg-type]


HIDDEN = [
    'asm("nop");', '__asm__ volatile("nop");', '__asm("nop");', "a\\\nsm(0);", "a\\ \nsm(0);",
    "a??/\nsm(0);", "// ??/\nasm(0);", "// x \\ \nasm(0);", "// x\rasm(0);", "/* */asm(0);",
    "#define J as##m", "#define J __a ## sm__", "#define J as%:%:m", "#undef asm",
    'char *s = "\\""; asm(0);', "int x = '\"'; asm(0); // \"",
    '#pragma push_macro("asm")', '_Pragma("push_macro(\\"asm\\")")', '#pragma GCC dependency "x"',
    '#if 0\n" /*\n#endif\nasm(0);\n#if 0\n*/\n#endif', "#if 0\n' /*\n#endif\nasm(0);\n/* */",
    "' asm(0);", "a as ## ## m", "#pragma clang module import x",
    '#line 5 "/etc/passwd"', '# 5 "../x"', '#if __has_embed("x")',
]  # fmt: skip


@pytest.mark.parametrize("text", HIDDEN)
@pytest.mark.parametrize("kind", [CodeFormat.OPENCL, CodeFormat.PORTABLE])
def test_machine_code_of_the_host_is_refused(text: str, kind: str) -> None:
    source = f"{text}\nint rest;"
    with pytest.raises(InvalidFunction):
        checked_source(LoadedCode("k.cl", kind, source.encode(), "d"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "int plasma, asmx; // no asm here",
        "/* asm */ x.asmd = 1;",
        'printf("asm");',
        "#pragma unroll 4",
        "#pragma OPENCL EXTENSION cl_khr_fp16 : enable",
        '#line 5 "kernels.cl"',
        "// it's fine\nint a;",
    ],
)
def test_ordinary_sources_are_not(text: str) -> None:
    checked_source(LoadedCode("k.cl", CodeFormat.OPENCL, text.encode(), "d"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ['"', "'", '\\"', "\\'", " ", "_Pragma ", "/*", "# ", "??/"])
def test_large_sources_are_read_in_proportion_to_their_size(text: str) -> None:
    """Otherwise each of these takes minutes to hours, in which the node does nothing else."""
    source = f'" {text * 150_000}'
    checked_source(LoadedCode("k.cl", CodeFormat.OPENCL, source.encode(), "d"))  # type: ignore[arg-type]
    checked_source(LoadedCode("k.cl", CodeFormat.OPENCL, source[1:].encode(), "d"))  # type: ignore[arg-type]
    assert not signatures(source)


@pytest.mark.parametrize("quote", ['"', "'"])
def test_literals_with_very_many_escapes_are_refused(quote: str) -> None:
    """Each escape takes memory while the text is read."""

    def literal(escapes: int) -> LoadedCode:
        source = quote + escapes * "\\n" + quote
        return LoadedCode("k.cl", CodeFormat.OPENCL, source.encode(), "d")  # type: ignore[arg-type]

    checked_source(literal(262_143))
    with pytest.raises(InvalidFunction, match="more than 262143 escapes"):
        checked_source(literal(262_144))


READS = ['asm(".incbin \\"/etc/passwd\\"");', 'asm(".inc" "bin \\"x\\"");', 'asm("\\x2eincbin x");']


@pytest.mark.parametrize("text", READS)
@pytest.mark.parametrize("kind", [CodeFormat.HIP, CodeFormat.CUDA, CodeFormat.OPENCL])
def test_assembler_directives_that_read_files_are_refused(text: str, kind: str) -> None:
    with pytest.raises(InvalidFunction):
        checked_source(LoadedCode("k", kind, text.encode(), "d"))  # type: ignore[arg-type]


def test_assembly_of_the_device_is_not() -> None:
    text = 'asm("mov.u32 %0, %%laneid;" : "=r"(x));'
    for kind in (CodeFormat.HIP, CodeFormat.CUDA):
        checked_source(LoadedCode("k", kind, text.encode(), "d"))  # type: ignore[arg-type]


# --- the cache ------------------------------------------------------------------------------


def test_cached_code_is_found_again(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "a" / "b")
    assert cache.get("k") is None
    cache.put("k", b"code")
    assert cache.get("k") == b"code"
    cache.put("k", b"")
    assert cache.get("k") == b""
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0


def test_damage_is_seen(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    cache.put("k", b"code" * 100)
    whole = (tmp_path / "k").read_bytes()
    for length in range(0, len(whole), 9):
        (tmp_path / "k").write_bytes(whole[:length])
        assert cache.get("k") is None
    for at in range(0, len(whole), 9):
        (tmp_path / "k").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.get("k") is None


def test_many_writers_and_readers(tmp_path: Path) -> None:
    seen = set()

    def work(number: int) -> None:
        cache = CodeCache(tmp_path)
        for _ in range(30):
            cache.put("k", bytes([number]) * 50_000)
            data = cache.get("k")
            seen.add(None if data is None else (len(data), len(set(data))))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {(50_000, 1)}
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = CodeCache(tmp_path / "file" / "below")
    cache.put("k", b"code")
    assert cache.get("k") is None


def test_the_folder_keeps_to_its_limit(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, limit_bytes=5000)
    for number in range(20):
        cache.put(f"k{number}", bytes(1000))
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 5000
    assert cache.get("k19") is not None
    assert cache.get("k0") is None


def test_the_users_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp/cache-of-a-test")
    assert default_folder() == Path("/tmp/cache-of-a-test/dandelion/code")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_folder() == Path("/home/somebody/.cache/dandelion/code")
