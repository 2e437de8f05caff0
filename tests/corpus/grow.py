"""Search for texts that cover new branches of the parser, and store the shortest.

``python -m tests.corpus.grow --seconds 1200`` throws texts at the parser: what the strategies of
the round-trip properties make, and what comes of damaging texts that were interesting. Interesting
is a text with a **feature** that no shorter one has: a problem of another kind, two kinds after
each other, or a way through the code of the reader that nothing took before. In the end few texts
that have most features together are made as small as their features allow and become the files of
``tests/corpus/language``; ``expected.json`` beside them says what is found in each.
`tests/test_corpus.py` replays it.

A text that breaks a property stops the search; it is printed and belongs into a test of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
import re
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dandelion.dataflow.language import parse
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.validate import check_module, validate
from dandelion.errors import InvalidComposition, Problem
from tests.properties.test_roundtrip import TOKENS, modules, mutations, reads_or_refuses

FOLDER = Path(__file__).parent / "language"
FILES = 200
LONGEST = 600  # characters of a stored text
WATCHED = re.compile(r"dataflow/(syntax|syntax_advice|syntax_words|rules\w*|validate|excerpt)\.py$")
Features = frozenset[str]

texts = st.one_of(
    st.lists(st.sampled_from(TOKENS), max_size=40).map(" ".join),
    st.text(max_size=60),
    mutations(),
    modules().map(print_module),
)


class Arcs:
    """Records which lines of the parser follow each other, as a context manager."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._before: Any = None

    def __enter__(self) -> Arcs:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        file = WATCHED.search(frame.f_code.co_filename)
        if file is None:
            return None
        last = 0

        def line(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            if event == "line":
                self.found.add(f"{file[1]}:{last}-{frame.f_lineno}")
                last = frame.f_lineno
            return line

        return line


def problems_of(text: str) -> list[Problem]:
    """All problems of a text."""
    try:
        module = parse(text, "f.dc")
    except InvalidComposition as error:
        return list(error.problems)
    return [*check_module(module, text=text), *validate(module, lambda _: None, text=text)]


def features_of(text: str) -> Features:
    """The features of a text."""
    with Arcs() as arcs:
        problems = problems_of(text)
    kinds = []
    for problem in problems:
        words = re.sub(r"\d+|\w+#\w+|['(\"].*", "_", problem.message, flags=re.DOTALL)
        said = problem.expected if problem.code == "syntax" else bool(problem.nearest)
        kinds.append(f"{problem.code}|{words}|{said}")
    pairs = (f"{first} -> {second}" for first, second in itertools.pairwise(kinds))
    return frozenset([*arcs.found, *kinds, *pairs])


class Search:
    """The shortest text for every feature so far."""

    def __init__(self) -> None:
        self.shortest: dict[str, str] = {}
        self.tried = 0

    def try_text(self, text: str) -> None:
        """Check the properties on a text, and store it if it has new features."""
        if len(text) > LONGEST:
            return
        self.tried += 1
        try:
            reads_or_refuses(text)
            text.encode()
        except UnicodeEncodeError:
            return
        except BaseException:
            print(f"FOUND: {text!r}")
            raise
        for feature in features_of(text):
            known = self.shortest.get(feature)
            if known is None or len(text) < len(known):
                self.shortest[feature] = text

    def generate(self, number: int) -> None:
        """Try texts of the strategies."""

        @seed(number)
        @settings(
            max_examples=400, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(texts)
        def one(text: str) -> None:
            self.try_text(text)

        one()

    def damage(self, source: random.Random, count: int) -> None:
        """Try damaged texts, and combinations of two texts."""
        pool = sorted(set(self.shortest.values()))
        for _ in range(count):
            text = source.choice(pool)
            for _ in range(source.randint(1, 3)):
                start = source.randint(0, len(text))
                end = min(len(text), start + source.choice((0, 0, 1, 3, 10)))
                other = source.choice(pool)
                cut = source.randint(0, len(other))
                new = source.choice(("", f" {source.choice(TOKENS)} ", other[cut : cut + 30]))
                text = text[:start] + new + text[end:]
            self.try_text(text)

    def smallest(self) -> dict[str, Features]:
        """Return a small number of short texts that have all features."""
        known = {text: features_of(text) for text in set(self.shortest.values())}
        chosen: dict[str, Features] = {}
        left = set(self.shortest)
        while left and len(chosen) < FILES:
            best = max(known, key=lambda t: (len(left & known[t]) / (40 + len(t)), t))
            small = shrunk(best, left & known[best])
            chosen[small] = features_of(small)
            left -= chosen[small]
        print(f"{len(self.shortest)} features, {len(left)} of them left out")
        return chosen


def shrunk(text: str, features: Features | set[str]) -> str:
    """Remove words and letters while the features remain."""
    width = max(1, len(text) // 2)
    while width:
        start = 0
        while start < len(text):
            shorter = text[:start] + text[start + width :]
            if features <= features_of(shorter):
                text = shorter
            else:
                start += width
        width //= 2
    return text


def main() -> None:
    """Search, starting from the old corpus, then write the new one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60, help="CPU time of the search")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    search = Search()
    for path in sorted(FOLDER.glob("*.dandelion")):
        search.try_text(path.read_bytes().decode())
    source = random.Random(arguments.seed)
    number = arguments.seed
    while time.process_time() < arguments.seconds:
        search.generate(number)
        search.damage(source, 400)
        number += 1
        if number % 20 == 0:
            print(f"{search.tried} texts, {len(search.shortest)} features", flush=True)
    chosen = search.smallest()
    for path in FOLDER.glob("*.dandelion"):
        path.unlink()
    expected: dict[str, list[str]] = {}
    for text in chosen:
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:10]}.dandelion"
        (FOLDER / name).write_bytes(text.encode())
        expected[name] = [f"{p.line}:{p.column} {p.code}" for p in problems_of(text)]
    index = msgspec.json.format(msgspec.json.encode(dict(sorted(expected.items())))) + b"\n"
    (FOLDER / "expected.json").write_bytes(index)
    print(f"{search.tried} texts tried, {len(chosen)} files kept")


if __name__ == "__main__":
    main()
