"""Demonstrate `image_archive`: start an archive, archive twice, check its content.

Run it with ``python -m dandelion.compositions.image_archive.demo`` while a node runs that may send
requests to this machine: ``dandelion serve --options http.allow=127.0.0.1``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dandelion.errors import DandelionError
from dandelion.frontend.client import Client

from . import bundle, oracle
from .archive_server import Archive, serve_archive


def run(url: str, seed: int) -> bool:
    """Archive the pictures of two runs; return whether the results equal the oracle's."""
    archive, model = Archive(), oracle.Model()
    is_right = True
    with serve_archive(archive) as place, Client(url) as client:
        client.register(bundle.document(place))
        for number in (1, 2):
            inputs = bundle.example_inputs(seed, number)
            outputs = client.invoke(bundle.NAME, **inputs)
            holds = bundle.agrees(bundle.results(outputs), bundle.expected(inputs, model))
            print(f"run {number}: {'as expected' if holds else 'WRONG'}")
            for row in bundle.read_report(outputs).pictures:
                print(f"  {row.name:16} {row.outcome:10} {row.versions} versions, {row.detail}")
            is_right = is_right and holds
    entries = {id_: oracle.entry(versions) for id_, versions in model.versions.items()}
    if archive.entries != entries:
        print("WRONG: the archive's versions differ from the expected ones")
    return is_right and archive.entries == entries


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 if all is right."""
    parser = argparse.ArgumentParser(
        "image_archive", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the node")
    parser.add_argument("--seed", type=int, default=1, help="of the pictures")
    arguments = parser.parse_args(argv)
    try:
        return 0 if run(arguments.url, arguments.seed) else 1
    except DandelionError as error:
        print(f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
