"""Train the network, export it as the function `tag`, and write the files of ``data/``.

Run it with ``python -m dandelion.compositions.photo_tagging.train``; it needs the extra ``export``.
The files are ``tag.json`` (the function) and ``expected.json`` (its scores for the pictures of the
example, computed by torch in double precision, and the share of them that is right).
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import msgspec

from dandelion.documents import RegistrationDocument
from dandelion.export import export_module
from dandelion.export.torch_binding import reference_outputs

from .bundle import EXAMPLE_COUNT, EXAMPLE_SEED
from .pictures import SIDE, TAGS, draw, network_input

DATA = Path(__file__).parent / "data"
SEED = 11
PICTURES = 3000
EPOCHS = 6
BATCH = 50


def network(torch: Any) -> Any:
    """A residual network with 20 000 weights."""
    nn = torch.nn

    def layer(inputs: int, outputs: int, stride: int = 1) -> list[Any]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs)]

    def forward(self: Any, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.body(x))
        x = torch.relu(self.skip(x) + self.down(x))
        return self.head(x.mean((2, 3)))

    made = type("Tagger", (nn.Module,), {"forward": forward})()
    made.stem = nn.Sequential(*layer(3, 16, 2))
    made.body = nn.Sequential(*layer(16, 16), nn.ReLU(), *layer(16, 16))
    made.down = nn.Sequential(*layer(16, 32, 2), nn.ReLU(), *layer(32, 32))
    made.skip = nn.Conv2d(16, 32, 1, 2)
    made.head = nn.Linear(32, len(TAGS))
    return made


def trained(torch: Any) -> Any:
    """Train on drawn pictures."""
    torch.manual_seed(SEED)
    net = network(torch)
    pictures, labels = draw(PICTURES, SEED)
    x, wanted = torch.from_numpy(network_input(pictures)), torch.from_numpy(labels)
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
    net = trained(torch)
    example = torch.zeros(1, 3, SIDE, SIDE)
    made = export_module("tag", net, (example,), outputs=["scores"], inputs=["image"])
    document = RegistrationDocument(functions=(made.function,))
    (DATA / "tag.json").write_bytes(msgspec.json.encode(document))
    pictures, labels = draw(EXAMPLE_COUNT, EXAMPLE_SEED)
    x = torch.from_numpy(network_input(pictures))
    scores = reference_outputs(net, (x,), ["scores"])["scores"]
    right = float((scores.argmax(1) == labels).mean())
    rows = [[round(float(value), 7) for value in row] for row in scores]
    text = json.dumps({"right": right, "scores": rows})
    (DATA / "expected.json").write_text(text + "\n")
    print("\n".join([*made.report.lines(), f"{right:.1%} of the example are right"]))


if __name__ == "__main__":
    main()
