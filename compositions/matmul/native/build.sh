#!/bin/sh
# Build matmul.elf beside this file, or in the given folder. Needs a C compiler for x86-64.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
"${CC:-cc}" -O3 -nostdlib -ffreestanding -Wall -Wextra -Werror -Wno-unused-function \
    -static -fno-pie -no-pie -fno-stack-protector -fcf-protection=none \
    -fno-asynchronous-unwind-tables -Wl,--build-id=none \
    "-I$here/../../../backends/native" "$here/matmul.c" -o "$out/matmul.elf"
chmod a-x "$out/matmul.elf"
