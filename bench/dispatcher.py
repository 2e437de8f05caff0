"""What does an application of a function cost, apart from the function?

Null functions, in-process: a single call, a chain of 100, ``each`` over 1000 items, a diamond. The
floor beside them is a bare Python call.
"""

from __future__ import annotations

import asyncio

from dandelion.bench.measure import Sample, keep_name, report, summed_up, timed

from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.node import Node, Settings

CHAIN = 100
FAN = 1000
BUDGET = "<= 25 us"


def document() -> RegistrationDocument:
    """Null functions and the compositions that are measured."""
    null = (CodeDocument("null"),)
    functions = (
        FunctionDocument("F", ("a",), ("b",), code=null),
        FunctionDocument("Join", ("l", "r"), ("b", "c"), code=null),
    )
    steps = "".join(f"F(a = all s{i}) => (s{i + 1} = b);" for i in range(CHAIN))
    text = f"""
    function F(a) => (b);
    function Join(l, r) => (b, c);
    composition One(x) => (y) {{ F(a = all x) => (y = b); }}
    composition Chain(s0) => (s{CHAIN}) {{ {steps} }}
    composition Fan(x) => (y) {{ F(a = each x) => (y = b); }}
    composition Diamond(x) => (y) {{
        F(a = all x) => (top = b);
        F(a = all top) => (left = b);
        F(a = all top) => (right = b);
        Join(l = all left, r = all right) => (y = b);
    }}"""
    return RegistrationDocument(functions=functions, compositions=(text,))


def measure(node: Node) -> list[Sample]:
    """Time everything on a running node."""
    items = [b"x"] * FAN
    samples = [
        timed("bare Python call of hex()", lambda: b"x".hex(), count=2000),
        timed("a function by name, sync", lambda: node.invoke("F", a=b"x"), count=3000,
              budget=BUDGET),
        timed("one application, sync", lambda: node.invoke("One", x=b"x"), count=3000,
              budget=BUDGET),
        timed("chain of 100, each application", lambda: node.invoke("Chain", s0=b"x"), count=100,
              per=CHAIN, budget=BUDGET),
        timed("diamond, each application", lambda: node.invoke("Diamond", x=b"x"), count=1000,
              per=4, budget=BUDGET),
        timed("fan-out each over 1000, each instance", lambda: node.invoke("Fan", x=items),
              count=50, per=FAN, budget=BUDGET),
    ]  # fmt: skip

    async def in_a_loop() -> Sample:
        async def one() -> None:
            await node.invoke_async("One", x=b"x")

        timings = []
        for _ in range(3000):
            start = asyncio.get_running_loop().time()
            await one()
            timings.append((asyncio.get_running_loop().time() - start) * 1e6)
        return summed_up("one application, async", timings, budget=BUDGET)

    samples.insert(2, asyncio.run(in_a_loop()))
    return samples


def main() -> None:
    """Run and print."""
    with Node(Settings(backends=("null",))) as node:
        node.register(document())
        node.wait_ready()
        samples = measure(node)
    report("dispatcher", "what does an application cost?", samples, keep_name())


if __name__ == "__main__":
    main()
