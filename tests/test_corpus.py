"""Texts that cover the parser of the language are parsed as when they were stored."""

from pathlib import Path

import msgspec
import pytest

from tests.corpus.grow import FILES, FOLDER, problems_of
from tests.properties.test_roundtrip import reads_or_refuses

EXPECTED = msgspec.json.decode((FOLDER / "expected.json").read_bytes(), type=dict[str, list[str]])
PATHS = sorted(FOLDER.glob("*.dandelion"))


def test_the_corpus_is_whole_and_small() -> None:
    assert [path.name for path in PATHS] == sorted(EXPECTED)
    assert 50 < len(PATHS) <= FILES


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_texts_of_the_corpus(path: Path) -> None:
    text = path.read_bytes().decode()
    reads_or_refuses(text)
    found = [f"{p.line}:{p.column} {p.code}" for p in problems_of(text)]
    assert found == EXPECTED[path.name]
