"""Demonstrate `text_generation`: start a node, have it continue texts, check every character.

Run it with ``python -m dandelion.compositions.text_generation.demo``. The exit status is 0 only if
the texts are those that torch computed. With a prompt, ``... demo 'my lamp '``, it continues that.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

from dandelion.data import Item, ItemSet
from dandelion.errors import DandelionError
from dandelion.node import Node
from dandelion.settings import Settings

from . import bundle


def show(node: Node) -> bool:
    """Continue the prompts of the example; return whether all is as expected."""
    inputs = bundle.example_inputs(0)
    wanted = bundle.expected(inputs)
    found = bundle.results(node.invoke(bundle.NAME, **inputs))
    for prompt, text in zip(bundle.PROMPTS.values(), found["texts"], strict=True):
        print(f"  {prompt}|{str(text)[len(prompt) :]}")
    begin = time.perf_counter()
    again = bundle.results(node.invoke(bundle.NAME, **inputs))
    seconds = time.perf_counter() - begin
    count = sum(len(text) for text in again["texts"])
    holds = bundle.agrees(found, wanted) and bundle.agrees(again, wanted)
    print(f"  {count} characters in {seconds:.2f} s")
    print("  as torch computed them" if holds else "  WRONG: torch computed something else")
    return holds


def continue_prompt(node: Node, prompt: str, temperature: float, seed: int) -> None:
    """Print a prompt with what the network makes of it."""
    options = json.dumps({"temperature": temperature, "seed": seed}).encode()
    prompts = ItemSet("prompts", (Item("prompt", data=prompt.encode()),))
    found = node.invoke(bundle.NAME, prompts=prompts, options=options)["texts"]
    print(found.bytes().decode() if found else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 if all is right."""
    name = "text_generation"
    parser = argparse.ArgumentParser(name, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "prompt", nargs="?", help="a text to continue; default: those of the example"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    parser.add_argument("--backend", default="cuda|hip|opencl", help="GPU backends, the best first")
    arguments = parser.parse_args(argv)
    settings = Settings(backends=("process", arguments.backend), arena_bytes=64 << 20)
    try:
        with Node(settings) as node:
            node.register(bundle.document())
            if arguments.prompt is None:
                return 0 if show(node) else 1
            continue_prompt(node, arguments.prompt, arguments.temperature, arguments.seed)
            return 0
    except DandelionError as error:
        print(f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
