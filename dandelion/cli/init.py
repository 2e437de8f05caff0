"""``dandelion init [FOLDER]``: a small project that runs at once."""

from __future__ import annotations

from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments

APP = '''"""Counts words, page by page."""

import re
from collections import Counter

import dandelion as dd

WORD = re.compile(r"\\w+")


@dd.function
def count(page: str) -> dict:
    """Count the words of a page. It runs in a sandbox: no files, no network."""
    return Counter(WORD.findall(page.lower()))


@dd.function
def total(counts: list[dict]) -> dict:
    """Add the counts of all pages."""
    return sum(map(Counter, counts), Counter())


@dd.composition
def word_count(pages):
    """Count each page for itself, then add."""
    return {"words": total(count(dd.each(pages)))}
'''
TEST = '''"""Functions are plain Python; compositions run on a node in this process."""

import dandelion as dd

from app import count, word_count


def test_count():
    assert count("One and one") == {"one": 2, "and": 1}


def test_word_count():
    with dd.Node() as node:
        node.register(word_count)
        result = node.invoke("word_count", pages=["One and one", "one"])
        assert result.words.json() == {"one": 3, "and": 1}
'''
FILES = {"app.py": APP, "test_app.py": TEST}


def run(arguments: Arguments, out: Output) -> int:
    """Write the files of a project; existing files are never changed."""
    folder = arguments.folder
    present = [name for name in FILES if (folder / name).exists()]
    if present:
        message = f"it already has {', '.join(present)}"
        raise WrongUsage(str(folder), message, "name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    if out.as_json:
        out.document({"files": [str(folder / name) for name in FILES]})
        return 0
    app = folder / "app.py"
    out.line(f"{app} has two functions and a composition, {folder / 'test_app.py'} tests them.")
    out.line("")
    rows = [
        (f"dandelion run {app} pages='one and one'", "run it once, without a node"),
        (f"dandelion dev {app}", "a node that reloads it as it changes"),
        (f"dandelion deploy {app} --url URL", "register it with a node"),
    ]
    width = max(len(command) for command, _ in rows)
    for command, text in rows:
        out.line(f"  {command:{width}}  # {text}")
    return 0
