"""Demonstrate `text_topics`: start a node, send it messages, check every answer.

Run it with ``python -m dandelion.compositions.text_topics.demo``. The exit status is 0 only if
every topic and confidence equals what torch computed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from dandelion.errors import DandelionError
from dandelion.node import Node
from dandelion.settings import Settings

from . import bundle

SHOWN = 6


def run(backend: str) -> bool:
    """Start a node, and classify; return whether all is as expected."""
    settings = Settings(backends=("process", backend), arena_bytes=64 << 20)
    with Node(settings) as node:
        node.register(bundle.document())
        return show(node)


def show(node: Node) -> bool:
    """Classify all messages of the example; return whether all is as expected."""
    inputs = bundle.example_inputs(1)
    outputs = node.invoke(bundle.NAME, **inputs)
    holds = bundle.agrees(bundle.results(outputs), bundle.expected(inputs))
    found = outputs["report"]
    report = json.loads(found.bytes()) if found else {"texts": [], "topics": {}}
    for text in report["texts"][:SHOWN]:
        message = bundle.texts()[int(text["name"][5:])]
        print(f"  {text['topic']:8} {text['confidence']:4.0%}  {message}")
    print(f"  {len(report['texts'])} messages: {report['topics']}")
    print("  as torch computed it" if holds else "  WRONG: torch computed something else")
    return holds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 if all is right."""
    parser = argparse.ArgumentParser("text_topics", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="cuda|hip|opencl", help="GPU backends, the best first")
    try:
        return 0 if run(parser.parse_args(argv).backend) else 1
    except DandelionError as error:
        print(f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
