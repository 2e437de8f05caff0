"""What is kept of a file: texts at their lines, with all else blank."""

from __future__ import annotations

from dataclasses import dataclass, field

from dandelion.capture.sources import SourceFile


@dataclass(slots=True)
class Pieces:
    """What is kept of one file: texts by their first lines."""

    file: SourceFile | None
    at: dict[int, list[str]] = field(default_factory=dict)

    def text(self) -> str:
        """Put the texts at their lines."""
        lines: list[str] = []
        for first in sorted(self.at):
            simple = [t for t in self.at[first] if "\n" not in t]
            longer = [t for t in self.at[first] if "\n" in t]
            lines += [""] * (first - 1 - len(lines))
            if simple and longer:  # a statement behind the last line of another
                simple = [f"{'; '.join(simple)}; {longer.pop(0)}"]
            for text in ["; ".join(simple)] if simple else longer:
                lines += text.split("\n")
        return "\n".join(lines) + "\n"
