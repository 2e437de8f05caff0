#!/bin/sh
# Build compress.elf and compress.wasm beside this file, or in the given folder.
# Needs a C compiler for x86-64; for WebAssembly clang and lld.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
headers=$here/../../backends/native
common="-O2 -nostdlib -ffreestanding -Wall -Wextra -Werror -I$headers $here/compress.c"

"${CC:-cc}" -static -fno-pie -no-pie -fno-stack-protector -fcf-protection=none \
    -fno-asynchronous-unwind-tables -Wl,--build-id=none $common -o "$out/compress.elf"
chmod a-x "$out/compress.elf"
if [ -n "${NO_WASM:-}" ]; then
    exit 0
fi
"${CLANG:-clang}" --target=wasm32 -Wl,--no-entry -Wl,--strip-all \
    -Wl,--export=run -Wl,--export=__dandelion_system_data $common -o "$out/compress.wasm"
chmod a-x "$out/compress.wasm"
