"""Draw the pictures of language.md anew: ``python -m docs.draw_pictures``.

A picture is named after the composition that it shows, which stands in the page as text.
"""

from __future__ import annotations

import re
from pathlib import Path

from dandelion.dataflow.draw import to_svg
from dandelion.dataflow.language import parse

HERE = Path(__file__).resolve().parent


def pictures() -> dict[str, str]:
    """Give the pictures that the page shows, by file name."""
    page = (HERE / "language.md").read_text("utf-8")
    texts = re.findall(r"^```dandelion\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    known = {c.name: c for text in texts for c in parse(text).compositions}
    names = re.findall(r"!\[\w+\]\(pictures/(\w+)\.svg\)", page)
    return {f"{name}.svg": to_svg(known[name]) for name in names}


if __name__ == "__main__":
    for file, picture in pictures().items():
        (HERE / "pictures" / file).write_text(picture, "utf-8")
