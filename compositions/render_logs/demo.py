"""Demonstrate `render_logs`: start its servers, request pages, compare each with the oracle.

Run it with ``python -m dandelion.compositions.render_logs.demo`` while a node runs that may send
requests to this machine: ``dandelion serve --options http.allow=127.0.0.1``. It writes the pages to
files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dandelion.errors import DandelionError
from dandelion.frontend.client import Client

from . import bundle, oracle, world

TOPIC = "logins"


def run(url: str, folder: Path) -> bool:
    """Request the page of every reader; return whether all answers are as expected."""
    folder.mkdir(parents=True, exist_ok=True)
    is_right = True
    with world.serve_world() as authority, Client(url) as client:
        client.register(bundle.document(authority))
        for token, reader in world.EXAMPLE.readers.items():
            outputs = client.invoke(bundle.NAME, token=token, topic=TOPIC)
            if outputs.html is None:
                print(f"{reader.name}: refused, {outputs.refusal.text()}")
                is_right = is_right and reader.is_locked
                continue
            page = outputs.html.text()
            holds = page == oracle.page(world.EXAMPLE, token, TOPIC)
            path = folder / f"logs-{token}.html"
            path.write_text(page, "utf-8")
            print(f"{reader.name}: {'as expected' if holds else 'WRONG'}, wrote {path}")
            is_right = is_right and holds
    return is_right


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 if all is right."""
    parser = argparse.ArgumentParser("render_logs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the node")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the pages")
    arguments = parser.parse_args(argv)
    try:
        return 0 if run(arguments.url, arguments.out) else 1
    except DandelionError as error:
        print(f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
