"""The composition `text_topics`: a transformer exported from torch, run without torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from dandelion.compositions.text_topics import bundle, demo, messages
from dandelion.compositions.text_topics.tally_topics import TOPICS, tally_topics
from dandelion.compositions.text_topics.tokenise_text import (
    BEGIN,
    LENGTH,
    PADDING,
    UNKNOWN,
    tokenised,
    word_pieces,
)

from dandelion.data import Item, ItemSet
from dandelion.node import Node, Settings

ERROR = 1e-4
DOCUMENT_LIMIT_BYTES = 300_000


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(backends=("process", "cuda|hip|opencl"), arena_bytes=64 << 20)
    with Node(settings) as made:
        made.register(bundle.document())
        yield made


@pytest.fixture(scope="module")
def numbers() -> dict[str, int]:
    lines = bundle.vocabulary().decode().splitlines()
    return {piece: number for number, piece in enumerate(lines)}


def test_messages_are_sorted_as_torch_does(node: Node) -> None:
    inputs = bundle.example_inputs(3)
    results = bundle.results(node.invoke(bundle.NAME, **inputs))
    assert len(results["report"]) == bundle.EXAMPLE_COUNT
    assert bundle.agrees(results, bundle.expected(inputs))


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_scores_are_those_of_torch(node: Node, numbers: dict[str, int], rows: int) -> None:
    ids = np.array([tokenised(text, numbers) for text in bundle.texts()[:rows]])
    found = node.invoke("classify_text", ids=ids)["scores"].numpy()
    wanted = bundle.expected_scores()[:rows]
    assert np.abs(found - wanted).max() <= ERROR * np.abs(wanted).max()


def test_any_text_has_an_answer(node: Node) -> None:
    texts = ("", "?!", "ünïcode \N{SNOWMAN} 漢字", "delivery " * 500, "x" * 100_000)
    items = (Item(f"text-{at}", data=text.encode()) for at, text in enumerate(texts))
    found = node.invoke(bundle.NAME, texts=ItemSet("texts", tuple(items)))
    assert len(bundle.results(found)["report"]) == len(texts)


def test_words_are_cut_into_the_longest_pieces() -> None:
    numbers = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "in": 3, "##voice": 4, "##vo": 5, "i": 6, "!": 7}
    assert word_pieces("invoice", numbers) == [3, 4]
    assert word_pieces("invite", numbers) == [UNKNOWN]
    assert word_pieces("i" * 41, numbers) == [UNKNOWN]
    found = tokenised("Invoice! invite", numbers)
    assert found == [BEGIN, 3, 4, 7, UNKNOWN] + [PADDING] * (LENGTH - 5)
    assert tokenised("i " * 90, numbers) == [BEGIN] + [6] * (LENGTH - 1)


def test_a_score_that_is_not_finite_is_refused() -> None:
    scores = np.full(len(TOPICS), np.nan, np.float32)
    with pytest.raises(ValueError, match="not finite"):
        tally_topics(ItemSet("scores", (Item("text-0", data=scores.tobytes()),)))


def test_the_stored_scores_are_right() -> None:
    _, labels = messages.write(bundle.EXAMPLE_COUNT, bundle.EXAMPLE_SEED)
    assert (bundle.expected_scores().argmax(1) == labels).mean() > 0.95


def test_the_document_is_small_and_calls_are_joined() -> None:
    path = bundle.HERE / "data" / "classify_text.json"
    assert path.stat().st_size < DOCUMENT_LIMIT_BYTES
    batching = bundle.classify().batching
    assert batching is not None
    assert batching.rows == 16


def test_the_demonstration(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.show(node)
    assert "as torch computed it" in capsys.readouterr().out
