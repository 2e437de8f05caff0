"""``dandelion init [FOLDER]``: a small project that runs at once."""

from __future__ import annotations

import shlex

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
    """Count each page separately, then add."""
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
APP_WITH_PACKAGES = '''"""Counts words by their stem, page by page."""

from collections import Counter

import dandelion as dd

from pages import words


@dd.function(packages=["snowballstemmer>=2"])
def count(page: str) -> dict:
    """Count the words of a page. The node has the package; this program need not."""
    import snowballstemmer

    return Counter(snowballstemmer.stemmer("english").stemWords(words(page)))


@dd.function
def total(counts: list[dict]) -> dict:
    """Add the counts of all pages."""
    return sum(map(Counter, counts), Counter())


@dd.composition
def word_count(pages):
    """Count each page separately, then add."""
    return {"words": total(count(dd.each(pages)))}
'''
MODULE = '''"""What the functions of app.py use. It is registered with them."""

import re

WORD = re.compile(r"\\w+")


def words(page: str) -> list[str]:
    return WORD.findall(page.lower())
'''
TEST_WITH_PACKAGES = '''"""Run 'dandelion wheels app.py' once before."""

from pathlib import Path

import dandelion as dd

from app import word_count
from pages import words


def test_words():
    assert words("One and one") == ["one", "and", "one"]


def test_word_count():
    wheels = Path(__file__).parent / "wheels"
    with dd.Node(dd.Settings(packages_folder=str(wheels))) as node:
        node.register(word_count)
        result = node.invoke("word_count", pages=["She runs", "running"])
        assert result.words.json() == {"she": 1, "run": 2}
'''
FILES_WITH_PACKAGES = {
    "app.py": APP_WITH_PACKAGES,
    "pages.py": MODULE,
    "test_app.py": TEST_WITH_PACKAGES,
}


def run(arguments: Arguments, out: Output) -> int:
    """Write the files of a project; existing files are never changed."""
    folder = arguments.folder
    files = FILES_WITH_PACKAGES if arguments.with_packages else FILES
    if folder.exists() and not folder.is_dir():
        raise WrongUsage(str(folder), "it is a file", "name a folder")
    present = [name for name in files if (folder / name).exists()]
    if present:
        message = f"it already has {', '.join(present)}"
        raise WrongUsage(str(folder), message, "name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    if out.as_json:
        out.document({"files": [str(folder / name) for name in files]})
        return 0
    path = folder / "app.py"
    out.line(f"{path} has two functions and a composition, {folder / 'test_app.py'} tests them.")
    out.line("")
    app, wheels = shlex.quote(str(path)), ""
    if arguments.with_packages:
        wheels = f" --wheels {shlex.quote(str(folder / 'wheels'))}"
    rows = [(f"dandelion wheels {app}", "download its packages")] if wheels else []
    rows += [
        (f"dandelion run {app} pages='one and one'", "run it once, without a node"),
        (f"dandelion dev {app}", "a node that reloads it as it changes"),
        (f"dandelion serve{wheels}", "a node, and in another terminal:"),
        (f"dandelion deploy {app}", "register it with the node"),
    ]
    width = max(len(command) for command, _ in rows)
    for command, text in rows:
        out.line(f"  {command:{width}}  # {text}")
    return 0
