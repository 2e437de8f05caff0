"""Build the vocabulary, train the network, export it, and write the files of ``data/``.

Run it with ``python -m dandelion.compositions.text_topics.train``; it needs the extra ``export``.
The files are ``vocabulary.txt``, ``classify_text.json`` (the function) and ``expected.json`` (its
scores for the messages of the example, computed by torch in double precision, and the share that
is right).
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from dandelion.documents import RegistrationDocument
from dandelion.export import export_module
from dandelion.export.torch_binding import reference_outputs

from .bundle import EXAMPLE_COUNT, EXAMPLE_SEED
from .messages import write
from .tally_topics import TOPICS
from .tokenise_text import LENGTH, PADDING, SPECIAL, WORD, tokenised

DATA = Path(__file__).parent / "data"
SEED = 11
MESSAGES, EPOCHS, BATCH = 3000, 6, 50
PIECES, WIDTH, HEADS, LAYERS = 320, 32, 4, 2
SIZES = (1, 16)


def vocabulary(texts: list[str]) -> list[str]:
    """Join the most frequent pair of pieces until there are enough; start with letters."""
    counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
    words = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in counts}
    found = dict.fromkeys((*SPECIAL, *sorted({p for pieces in words.values() for p in pieces})))
    while len(found) < PIECES:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                pairs[pair] += counts[word]
        (left, right), _ = max(pairs.items(), key=lambda entry: (entry[1], entry[0]))
        joined = left + right.removeprefix("##")
        found[joined] = None
        for pieces in words.values():
            at = 0
            while at + 1 < len(pieces):
                if pieces[at : at + 2] == [left, right]:
                    pieces[at : at + 2] = [joined]
                at += 1
    return list(found)


def network(torch: Any, pieces: int) -> Any:
    """A transformer encoder like BERT: sums of embeddings, layers, a head on the first piece."""
    nn, functional = torch.nn, torch.nn.functional

    def module(forward: Callable[..., Any], **parts: Any) -> Any:
        made = type("Part", (nn.Module,), {"forward": forward})()
        for name, part in parts.items():
            setattr(made, name, part)
        return made

    def layer(self: Any, x: Any, mask: Any) -> Any:
        shape = (x.shape[0], LENGTH, 3, HEADS, WIDTH // HEADS)
        query, key, value = self.into(x).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.first(x + self.out(seen.transpose(1, 2).reshape(x.shape)))
        return self.second(x + self.narrow(functional.gelu(self.wide(x))))

    def encoder(self: Any, ids: Any) -> Any:
        mask = (ids != PADDING)[:, None, None, :]
        x = self.start(self.pieces(ids) + self.places)
        for one in self.layers:
            x = one(x, mask)
        return self.head(x[:, 0])

    layers = [
        module(
            layer, into=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(WIDTH, WIDTH),
            wide=nn.Linear(WIDTH, 2 * WIDTH), narrow=nn.Linear(2 * WIDTH, WIDTH),
            first=nn.LayerNorm(WIDTH), second=nn.LayerNorm(WIDTH),
        )
        for _ in range(LAYERS)
    ]  # fmt: skip
    return module(
        encoder, pieces=nn.Embedding(pieces, WIDTH),
        places=nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1), start=nn.LayerNorm(WIDTH),
        layers=nn.ModuleList(layers), head=nn.Linear(WIDTH, len(TOPICS)),
    )  # fmt: skip


def trained(torch: Any, numbers: dict[str, int]) -> Any:
    """Train on messages."""
    torch.manual_seed(SEED)
    net = network(torch, len(numbers))
    texts, labels = write(MESSAGES, SEED)
    x = torch.tensor([tokenised(text, numbers) for text in texts])
    wanted = torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x)).split(BATCH):
            loss = torch.nn.functional.cross_entropy(net(x[part]), wanted[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def main() -> None:
    """Train and write."""
    torch: Any = importlib.import_module("torch")
    pieces = vocabulary(write(MESSAGES, SEED)[0])
    assert not any(re.search(r"\s", piece) for piece in pieces)
    (DATA / "vocabulary.txt").write_text("\n".join(pieces) + "\n")
    numbers = {piece: number for number, piece in enumerate(pieces)}
    net = trained(torch, numbers)
    example = torch.zeros(1, LENGTH, dtype=torch.int64)
    made = export_module("classify_text", net, (example,), outputs=["scores"], batch=SIZES)
    document = RegistrationDocument(functions=(made.function,))
    (DATA / "classify_text.json").write_bytes(msgspec.json.encode(document))
    texts, labels = write(EXAMPLE_COUNT, EXAMPLE_SEED)
    x = torch.tensor([tokenised(text, numbers) for text in texts])
    scores = reference_outputs(net, (x,), ["scores"])["scores"]
    right = float((scores.argmax(1) == labels).mean())
    rows = [[round(float(value), 7) for value in row] for row in scores]
    (DATA / "expected.json").write_text(json.dumps({"right": right, "scores": rows}) + "\n")
    print("\n".join([*made.report.lines(), f"{right:.1%} of the example are right"]))


if __name__ == "__main__":
    main()
