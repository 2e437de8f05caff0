"""Python sources that are expensive to parse or compile, or that are refused."""

import sys

MIB = 1024 * 1024
SPENT = "takes more than|not compiled within"


def nested_finally(depth: int) -> str:
    """Each level is compiled twice, so the code doubles with each."""
    lines = []
    for level in range(depth):
        indent = " " * level
        lines += [f"{indent}try:", f"{indent} pass", f"{indent}finally:"]
    return "\n".join([*lines, " " * depth + "x = 1"]) + "\n"


def added(terms: int) -> str:
    return "def f(x):\n    return str(" + "+".join(["1"] * terms) + ")\n"


HEAD = "def f(x): pass\n"
TAKEN = "^$|" if sys.version_info >= (3, 14) else ""
"""Of sources that only newer compilers take."""
DEEP = "nested too deeply|recursion|statically nested|Stack overflow"
HOSTILE: dict[str, tuple[str, str]] = {
    "nested finally": (nested_finally(20), SPENT),
    "many statements": (HEAD + "x=1;" * 250_000 + "\n", f"^$|{SPENT}"),
    "too long": (HEAD + "x=1;" * 262_144 + "\n", "too long"),
    "parentheses": ("(" * 100_000, "nested"),
    "unary operators": ("-" * 200_000 + "1", DEEP),
    "lambdas": ("lambda:" * 20_000 + "1", DEEP),
    "comprehensions": (HEAD + "[" * 60 + "1" + " for x in y]" * 60, f"^$|{SPENT}|{DEEP}"),
    "conditions": ("1 if x else " * 80_000 + "1", DEEP),
    "attributes": ("x" + ".a" * 500_000, f"{TAKEN}{DEEP}|{SPENT}"),
    "long sum": (added(20_000), TAKEN + DEEP),
    "huge integer": (HEAD + "x = " + "9" * MIB, "too long"),
    "large integer": ("x = " + "9" * 1_000_000, "4300"),
    "large f-string": (HEAD + "f'" + "{x}" * 340_000 + "'", f"^$|{SPENT}"),
    "folded power": (HEAD + "2**2**2**2**2**2**2\n1 << 10**9\n", "^$"),
    "folded strings": (HEAD + '("x" * 10**6) * 10**6\n((((1,)*4096)*4096)*4096)*4096\n', "^$"),
    "much code of constants": (HEAD + "(0,) * 256\n" * 90_000, f"^$|too much|{SPENT}"),
    "decorators": ("@d\n" * 100_000 + HEAD, f"^$|{SPENT}"),
    "null bytes": ("def f(x): return '\0'", "null"),
    "unknown encoding": ("# coding: nothing\n" + HEAD, "encoding"),
    "no text encoding": ("# coding: hex\n" + HEAD, "encoding"),
    "warnings": (HEAD + "0is 0;" * 100_000 + "\n", f"^$|{SPENT}"),
    "many problems": ("import zz\n" * 50_000, f"not declared|{SPENT}"),
    "long error": ("x" * 500_000 + " y", "invalid syntax"),
    "open brackets": ("[(" * 90, "closed"),
    "many arguments": (HEAD + "f(" + "x," * 400_000 + ")", f"^$|{SPENT}"),
}  # fmt: skip
"""By name: a source, and a pattern of the refusal; ``^$`` is none."""
