"""A hook of MkDocs: pages of the repository's root belong to the site, and links fit the site.

On a code host the same files are read as they are, with links relative to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
MOVED = {
    "ARCHITECTURE.md": "architecture.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "compositions/README.md": "compositions.md",
    "README.md": "index.md",
}
"""Files outside of ``docs/`` by their place in the site. The README is what the home page says."""
_SOURCES = {page: source for source, page in MOVED.items()}
_LINK = re.compile(r"(!?)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s]+)\)")
_DOCSTRING = re.compile(r"<!-- docstring: ([\w.]+) -->")
_FENCED = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of ``docs/``."""
    for source, page in MOVED.items():
        if source != "README.md":
            text = (ROOT / source).read_text("utf-8")
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Convert links, and put docstrings where comments ask for them."""
    source = _SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if page.file.src_uri == "index.md":
        source = "docs/index.md"
    parts = _FENCED.split(markdown)
    for number in range(0, len(parts), 2):
        parts[number] = _LINK.sub(lambda found: _converted(found, source), parts[number])
        parts[number] = _DOCSTRING.sub(r"::: \1", parts[number])
    return "".join(parts)


def _converted(found: re.Match[str], source: str) -> str:
    """Convert one link of a file to the same page or file in the site; else leave its text."""
    mark, text, target = found.groups()
    path, hash_, anchor = target.partition("#")
    if not path or ":" in path:
        return found[0]
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / place).exists():
        return found[0]  # MkDocs reports it
    if re.fullmatch(r"[\w-]+\.md", text):
        text = _title(place)
    if place in MOVED:
        return f"{mark}[{text}]({MOVED[place]}{hash_}{anchor})"
    if place.startswith("docs/"):
        return f"{mark}[{text}]({place.removeprefix('docs/')}{hash_}{anchor})"
    return text  # a source file, which the site does not have


def _title(place: str) -> str:
    """Return the first heading of a page."""
    heading = re.search(r"^# (.+)$", (ROOT / place).read_text("utf-8"), re.MULTILINE)
    return heading[1] if heading else place
