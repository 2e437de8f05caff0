"""The composition `text_generation`: a decoder exported from torch, whose loop runs on a device."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from dandelion.compositions.text_generation import bundle, demo, texts

from dandelion.data import Item, ItemSet
from dandelion.errors import ApplicationFailed
from dandelion.node import Node, Settings

DOCUMENT_LIMIT_BYTES = 300_000
LONGEST = texts.LENGTH - 2


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(backends=("process", "cuda|hip|opencl"), arena_bytes=64 << 20)
    with Node(settings) as made:
        made.register(bundle.document())
        yield made


def continued(node: Node, text: str, **options: float) -> str:
    prompts = ItemSet("prompts", (Item("t", data=text.encode()),))
    found = node.invoke(bundle.NAME, prompts=prompts, options=json.dumps(options).encode())
    assert found["texts"] is not None
    return found["texts"].bytes().decode()


@pytest.mark.parametrize("seed", [0, 1])
def test_texts_are_those_of_torch(node: Node, seed: int) -> None:
    inputs = bundle.example_inputs(seed)
    results = bundle.results(node.invoke(bundle.NAME, **inputs))
    assert len(results["texts"]) == len(bundle.PROMPTS)
    assert bundle.agrees(results, bundle.expected(inputs))


def test_a_text_is_one_call_on_the_device(node: Node) -> None:
    prompts = ItemSet("prompts", (Item("t", data=b"where is "),))
    handle = node.submit(bundle.NAME, prompts=prompts, options=None)
    handle.result()
    events = json.loads(node.trace(handle.id))["traceEvents"]
    ran = [e["name"] for e in events if e["ph"] == "X" and e["cat"] != "queue"]
    assert ran.count("write_character") == 1


def test_the_same_seed_gives_the_same_text(node: Node) -> None:
    drawn = {seed: continued(node, "the ", temperature=1.5, seed=seed) for seed in range(4)}
    assert len(set(drawn.values())) > 1
    assert drawn[2] == continued(node, "the ", temperature=1.5, seed=2)
    assert continued(node, "the ") == continued(node, "the ", temperature=0, seed=5)


@pytest.mark.parametrize("text", ["", "?!", "ünïcode ☃", "delivery " * 14, "x" * LONGEST])
def test_any_short_text_is_continued(node: Node, text: str) -> None:
    known = "".join(one for one in text if one in texts.CHARACTERS)
    assert continued(node, text).startswith(known)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x" * (LONGEST + 1), {}, "at most 126"),
        ("x", {"temperature": -1}, "0 to 10"),
        ("x", {"seed": 1.5}, "an integer"),
        ("x", {"tempreature": 1}, "options are like"),
    ],
)
def test_wrong_inputs(node: Node, text: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ApplicationFailed, match=message):
        continued(node, text, **options)


def test_noise_makes_the_choice_of_softmax() -> None:
    from array import array
    from math import exp

    scores = [0.0, 1.0, 2.0]
    counts = [0, 0, 0]
    for seed in range(30):
        drawn = array("f", texts.noise_of(1.0, str(seed)))
        for at in range(0, len(drawn) - 2, 3):
            if texts.NEVER in drawn[at : at + 3]:
                continue
            sums = [score + drawn[at + i] for i, score in enumerate(scores)]
            counts[sums.index(max(sums))] += 1
    weights = [exp(score) for score in scores]
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / sum(counts) - weight / sum(weights)) < 0.01


def test_the_document_is_small() -> None:
    assert (bundle.HERE / "data" / "write_character.json").stat().st_size < DOCUMENT_LIMIT_BYTES


def test_demonstration(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--backend", "cuda|hip|opencl"]) == 0
    assert "as torch computed" in capsys.readouterr().out
