"""``dandelion register``: files and folders, all or nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from dandelion.cli.connection import connect
from dandelion.cli.loading import load_sources
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.cli.sources import files_of_texts
from dandelion.documents import RegistrationDocument
from dandelion.errors import InvalidComposition, Problem
from dandelion.frontend.records import RegisterResponse

_NUMBER = re.compile(r"composition (\d{1,9})(?=:)")


def run(arguments: Arguments, out: Output) -> int:
    """Register the contents of all paths."""
    document = load_sources(arguments.paths)
    with connect(arguments) as client, naming_files(arguments.paths, document):
        registered = client.register(document, progress=True)
    if out.as_json:
        out.document(RegisterResponse(tuple(registered)))
    else:
        out.table(
            ("kind", "name", "version"), [(r.kind, r.name, str(r.version)) for r in registered]
        )
    return 0


@contextlib.contextmanager
def naming_files(paths: Sequence[Path], document: RegistrationDocument) -> Iterator[None]:
    """Give problems of texts the names of their files.

    Args:
        paths: that the document was loaded from.
        document: that a node checks in this context.
    """
    try:
        yield
    except InvalidComposition as error:
        files = files_of_texts(paths)
        error.problems = tuple([_in_file(p, document.compositions, files) for p in error.problems])
        raise


def _in_file(problem: Problem, texts: Sequence[str], files: Mapping[str, str]) -> Problem:
    """Name the file of a problem, in place of the number of the text in the document."""
    found = _NUMBER.match(problem.where)
    if found is None or not 0 < int(found[1]) <= len(texts):
        return problem
    name = files.get(texts[int(found[1]) - 1], found[0])
    return msgspec.structs.replace(problem, where=name + problem.where[found.end() :])
