"""FIXTURE. Compile a CUDA or HIP source for the fake device: ``compile.py KIND ARCH SOURCE OUT``.

The binary looks like the vendor's ELF file, as far as it is read: machine, architecture, the
section of variables, NVIDIA's symbols of them, AMD's metadata. Inside is a shared library of the
host.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
HEADER_BYTES = 64
IMAGE_BYTES = HEADER_BYTES + 8 + 16 + 16
_KERNEL = re.compile(r"(?:KERNEL|__global__)\s+void\s+(\w+)\s*\(([^)]*)\)")
_VARIABLE = re.compile(
    r"^(?:static\s+)?(?:__device__|DEVICE)\s+\w+\s+(\w+)\s*(?:\[\w+\]\s*)?(?:=[^;(]*)?;", re.M
)
_ASM = re.compile(r'asm\("(cvt)[^;]*;" : "=[fh]"\((\w+)\) : "[fh]"\((\w+)\)\);')
_FLAGS = ["-std=c++17", "-fPIC", "-O1", "-w", "-fpermissive", "-ffp-contract=off"]


def _headers() -> list[str]:
    """Return the options with which ``kernel.h`` is found, compiled if there is a folder for that.

    The compiler takes the compiled header only if its flags are those of the sources.
    """
    folder = os.environ.get("FAKE_HEADERS")
    if not folder:
        return [f"-I{HERE}"]
    made = Path(folder) / "kernel.h.gch"
    if not made.exists():
        part = f"{made}.{os.getpid()}"
        command = ["g++", *_FLAGS, "-xc++-header", "-o", part, str(HERE / "kernel.h")]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            os.replace(part, made)
    return [f"-I{folder}", f"-I{HERE}"]


def variables_of(source: str) -> list[str]:
    """Name the variables that a source declares itself."""
    return _VARIABLE.findall(source.partition("#line")[2] or source)


def compiled(source: str) -> tuple[bytes, dict[str, int]]:
    """Compile to a shared library; return it and the number of parameters of each kernel."""
    variables = variables_of(source)
    own = source.partition("#line")[2] or source  # not the definitions of dandelion.h
    kernels = {
        name: 0 if parameters.strip() in ("", "void") else parameters.count(",") + 1
        for name, parameters in _KERNEL.findall(own)
    }
    barriers = "BARRIER()" in own or "__syncthreads()" in own
    source = _ASM.sub(r"\2 = fake_\1(\3);", source)
    text = f'#include "kernel.h"\n#line 1 "source"\n{source}\n'
    text += "thread_local __attribute__((aligned(16))) unsigned char dandelion_local[1 << 18];\n"
    text += f'extern "C" int fake_barriers = {int(barriers)};\n'
    for name in variables:
        text += f'extern "C" {{ size_t fake_bytes_{name} = sizeof {name}; }}\n'
        text += f'extern "C" {{ void *fake_place_{name} = (void *)&{name}; }}\n'
    for name in kernels:
        text += f'extern "C" void fake_call_{name}(void **a) {{ fake_invoke({name}, a); }}\n'
        text += f'extern "C" {{ fake_sizes fake_sizes_{name}({name}); }}\n'
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.cpp").write_text(text)
        files = ["-o", f"{folder}/k.so", f"{folder}/k.cpp"]
        command = ["g++", *_FLAGS, "-shared", *_headers(), *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        return (Path(folder) / "k.so").read_bytes(), kernels


def image(
    kind: str,
    arch: str,
    library: bytes,
    variables: bool = False,
    parameters: dict[str, list[int]] | None = None,
    named: Mapping[str, int] | None = None,
) -> bytes:
    """Wrap a library as the vendor's ELF file.

    Args:
        kind: ``cuda`` or ``hip``.
        arch: such as ``sm_90`` or ``gfx90a``.
        library: what runs.
        variables: tell that there are some.
        parameters: sizes by kernel, for AMD's metadata.
        named: sizes of the variables in bytes, for NVIDIA's symbols; they are all aligned by 4.
    """
    named = named or {}
    strings = b"\0.shstrtab\0.nv.global\0.note\0.bss\0.symtab\0.strtab\0"
    strings += b"".join(name.encode() + b"\0" for name in named)
    note = _note(arch, parameters or {}) if kind == "hip" else b""
    body = struct.pack("<8s16sQQ", b"FAKEGPU1", arch.encode(), IMAGE_BYTES, len(library)) + library
    strings_at = HEADER_BYTES + len(body)
    note_at = strings_at + len(strings)
    symbols_at = note_at + len(note)
    symbols, end = bytes(24), 0
    for name, size in named.items():
        symbols += struct.pack(
            "<IBBHQQ", strings.index(b"\0%b\0" % name.encode()) + 1, 1, 0, 3, end, size
        )
        end += -(-size // 4) * 4
    table_at = symbols_at + len(symbols)
    sections = [
        (0, 0, 0, 0, 0, 0),
        (strings.index(b".shstrtab"), 3, 0, 0, strings_at, len(strings)),
        (strings.index(b".note"), 7, 2, 0, note_at, len(note)),
    ]
    if variables:
        name = b".bss" if kind == "hip" else b".nv.global"
        sections.append((strings.index(name), 8, 3, 0, table_at, end or 4))
    if named:
        sections.append((strings.index(b"\0.strtab") + 1, 3, 0, 0, strings_at, len(strings)))
        sections.append((strings.index(b".symtab"), 2, 0, 0, symbols_at, len(symbols)))
    links = [len(sections) - 2 if kind == 2 else 0 for _, kind, *_ in sections]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", *s, link, 0, 0, 0)
        for s, link in zip(sections, links, strict=True)
    )
    flags = int(re.sub(r"\D", "", arch) or 0) << 8 if kind == "cuda" else 0
    header = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        b"\x7fELF", 2, 1, 1, 65, 8, 2, 190 if kind == "cuda" else 224, 1, 0, 0, table_at, flags,
        HEADER_BYTES, 0, 0, 64, len(sections), 1,
    )  # fmt: skip
    return header + body + strings + note + symbols + table


def _note(arch: str, parameters: dict[str, list[int]]) -> bytes:
    import msgspec

    kernels = [
        {
            ".name": name,
            ".args": [
                *({".size": size, ".value_kind": "by_value"} for size in sizes),
                {".size": 8, ".value_kind": "hidden_global_offset_x"},
            ],
        }
        for name, sizes in parameters.items()
    ]
    data = msgspec.msgpack.encode(
        {"amdhsa.target": f"amdgcn-amd-amdhsa--{arch}:xnack-", "amdhsa.kernels": kernels}
    )
    padded = data + bytes(-len(data) % 4)
    return struct.pack("<III8s", 7, len(data), 32, b"AMDGPU\0\0") + padded


def _loaded(library: bytes) -> ctypes.CDLL:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        return ctypes.CDLL(file.name)


def sizes_of(library: bytes, kernels: dict[str, int]) -> dict[str, list[int]]:
    """Read the sizes of parameters out of a library."""
    loaded = _loaded(library)
    return {
        name: list((ctypes.c_uint * (count + 1)).in_dll(loaded, f"fake_sizes_{name}"))[:count]
        for name, count in kernels.items()
    }


def bytes_of(library: bytes, variables: Sequence[str]) -> dict[str, int]:
    """Read the sizes of variables out of a library."""
    loaded = _loaded(library)
    return {n: ctypes.c_size_t.in_dll(loaded, f"fake_bytes_{n}").value for n in variables}


def main(kind: str, arch: str, source: str, out: str) -> None:
    """Compile a file to a file."""
    text = Path(source).read_text()
    library, kernels = compiled(text)
    parameters = sizes_of(library, kernels) if kind == "hip" else None
    variables = variables_of(text)
    named = bytes_of(library, variables) if kind == "cuda" and variables else None
    plain = arch.removesuffix("a") if kind == "cuda" else arch
    Path(out).write_bytes(image(kind, plain, library, bool(variables), parameters, named))


if __name__ == "__main__":
    main(*sys.argv[1:])
