"""What does an application of a function cost, apart from the function?

Null functions, in-process, in the shapes that compositions have; beside them the same shape of
bare Python calls, and peers that run a no-op step, if they are installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

from dandelion.data import Item, ItemSet
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Findings, Panel, Plot, Row, Skip, at_most
from ..samples import LATENCIES, Samples, row
from ..systems import names
from ..systems.nodes import open_node
from ..systems.steps import StepRunner, no_op, step_runners
from ..timing import in_turns

OURS, BARE = names.NULL, "bare call"
BUDGET_US = 25.0
CHAIN, FAN = 100, 1000
Action = Callable[[], object]
Sized = Callable[[int], Action | None]


def document(chains: Sequence[int] = ()) -> RegistrationDocument:
    """Null functions and the compositions that are measured."""
    null = (CodeDocument("null"),)
    functions = (
        FunctionDocument("F", ("a",), ("b",), code=null),
        FunctionDocument("Join", ("l", "r"), ("b", "c"), code=null),
    )
    text = f"""
    function F(a) => (b);
    function Join(l, r) => (b, c);
    composition One(x) => (y) {{ F(a = all x) => (y = b); }}
    composition Fan(x) => (y) {{ F(a = each x) => (y = b); }}
    composition Keyed(x, z) => (y) {{ Join(l = keyed x, r = keyed z) => (y = b) by l inner r; }}
    composition Diamond(x) => (y) {{
        F(a = all x) => (top = b);
        F(a = all top) => (left = b);
        F(a = all top) => (right = b);
        Join(l = all left, r = all right) => (y = b);
    }}
    {"".join(_chain(length) for length in sorted({CHAIN, *chains}))}"""
    return RegistrationDocument(functions=functions, compositions=(text,))


def _chain(length: int) -> str:
    steps = "".join(f"F(a = all s{i}) => (s{i + 1} = b);" for i in range(length))
    return f"composition Chain{length}(s0) => (s{length}) {{ {steps} }}\n"


def _bare_chain(length: int) -> None:
    value = b"x"
    for _ in range(length):
        value = no_op(value)


def _bare_fan(values: Sequence[bytes]) -> list[bytes]:
    return [no_op(value) for value in values]


def _bare_diamond() -> tuple[bytes, bytes]:
    top = no_op(b"x")
    return no_op(no_op(top)), no_op(top)


def _shapes(node: Node) -> list[tuple[str, Action, Action, int, int]]:
    """List name, our call, the bare call, applications in a call, and how often to call."""
    many = [b"x"] * FAN
    keyed = ItemSet("x", tuple(Item(str(key), key, b"x") for key in range(FAN)))
    other = ItemSet("z", keyed.items)
    return [
        ("a function by name", lambda: node.invoke("F", a=b"x"), lambda: no_op(b"x"), 1, 2000),
        ("one application", lambda: node.invoke("One", x=b"x"), lambda: no_op(b"x"), 1, 2000),
        (f"chain of {CHAIN}, each application", lambda: node.invoke(f"Chain{CHAIN}", s0=b"x"),
         lambda: _bare_chain(CHAIN), CHAIN, 100),
        ("diamond, each application", lambda: node.invoke("Diamond", x=b"x"), _bare_diamond,
         4, 500),
        (f"each over {FAN}, each instance", lambda: node.invoke("Fan", x=many),
         lambda: _bare_fan(many), FAN, 40),
        (f"join of {FAN} keys, each instance",
         lambda: node.invoke_sets("Keyed", {"x": keyed, "z": other}), lambda: _bare_fan(many), FAN,
         40),
    ]  # fmt: skip


def _by_shape(bench: Bench, node: Node) -> Panel:
    rows: list[Row] = []
    for name, ours, bare, per, count in _shapes(node):
        bench.say(name)
        count = max(5, count // 10) if bench.quick else count
        timed = in_turns({OURS: ours, BARE: bare}, count=count, warm_up=5)
        rows += [row(system, name, timed[system], per=per) for system in (OURS, BARE)]
    rows.insert(
        4, row(OURS, "one application, awaited", _awaited(node, 200 if bench.quick else 2000))
    )
    return Panel(
        "applications", "What one application of a null function costs, by what is invoked",
        Axis("what is invoked"), LATENCIES, tuple(rows), Plot.BARS, BARE,
    )  # fmt: skip


def _awaited(node: Node, count: int) -> Samples:
    """Time applications from a coroutine."""
    timed = Samples()

    async def calls() -> None:
        for _ in range(count + 10):
            started = perf_counter_ns()
            await node.invoke_async("One", x=b"x")
            timed.ns.append(perf_counter_ns() - started)

    asyncio.run(calls())
    return Samples(timed.ns[10:])


def _by_size(bench: Bench, sizes: Sequence[int], calls: Mapping[str, Sized]) -> tuple[Row, ...]:
    """Time calls of growing size, all systems in turns; rows are about one application."""
    rows = []
    for size in sizes:
        bench.say(f"{size} applications")
        made = {name: make(size) for name, make in calls.items()}
        actions = {name: action for name, action in made.items() if action is not None}
        count = max(5, min(400, (2000 if bench.quick else 20_000) // size))
        timed = in_turns(actions, count=count, warm_up=3, seconds=0.5 if bench.quick else 2.0)
        rows += [row(name, float(size), timed[name], per=size) for name in actions]
    return tuple(rows)


def _growth(
    bench: Bench, node: Node, chains: Sequence[int], others: Sequence[StepRunner]
) -> tuple[Panel, Panel]:
    fans = bench.pick([1, 100, 1000], [1, 10, 100, 1000, 10_000], [1, 10, 100, 1000, 10_000])
    axis = Axis("applications in one call", logarithmic=True)

    def ours_fan(width: int) -> Action:
        items = [b"x"] * width
        return lambda: node.invoke("Fan", x=items)

    def bare_fan(width: int) -> Action:
        items = [b"x"] * width
        return lambda: _bare_fan(items)

    chain: dict[str, Sized] = {
        OURS: lambda length: lambda: node.invoke(f"Chain{length}", s0=b"x"),
        BARE: lambda length: lambda: _bare_chain(length),
    }
    fan: dict[str, Sized] = {OURS: ours_fan, BARE: bare_fan}
    chain |= {peer.name: peer.chain for peer in others}
    fan |= {peer.name: peer.fan for peer in others}
    return (
        Panel("chain", "Each application of a chain, by its length", axis, LATENCIES,
              _by_size(bench, chains, chain), Plot.LINES, BARE),
        Panel("fan_out", "Each instance of a fan-out, by its width", axis, LATENCIES,
              _by_size(bench, fans, fan), Plot.LINES, BARE),
    )  # fmt: skip


def _claims(chain: Panel) -> tuple[Claim, ...]:
    """Compare us with the peers that were measured beside us, each at its longest chain."""
    p50 = {(r.system, r.x): r.values["p50"] for r in chain.rows}
    longest = {r.system: r.x for r in chain.rows if r.system not in (OURS, BARE)}  # they ascend
    return tuple(
        Claim(
            f"{name}, measured here",
            f"an application of a chain costs less than a step of {name}",
            f"{p50[OURS, x]:.1f} us against {p50[name, x]:.1f} us, chain of {x:.0f}",
            p50[OURS, x] < p50[name, x],
        )
        for name, x in longest.items()
        if isinstance(x, float)
    )


@experiment(
    "applications", group="dispatcher", question="What does one application of a function cost?"
)
def applications(bench: Bench) -> Findings:
    """Measure shapes of compositions, and growth against bare calls and peers."""
    chains = bench.pick([1, 10, 100], [1, 10, 100, 1000], [1, 10, 100, 1000])
    skips: list[Skip] = []
    with open_node({"backends": ("null",)}) as node, step_runners(bench.quick, skips) as others:
        node.register(document(chains))
        shape = _by_shape(bench, node)
        chain, fan = _growth(bench, node, chains, others)
    p50 = {r.x: r.values["p50"] for r in shape.rows if r.system == OURS}
    further = p50[f"chain of {CHAIN}, each application"]
    budget = at_most(
        "one application of a null function, in-process", p50["one application"], BUDGET_US, " us",
        f"a further application costs {further:.1f} us; the rest is the invocation's own",
        digits=".1f",
    )  # fmt: skip
    return Findings((shape, chain, fan), _claims(chain), (budget,), tuple(skips))
