"""Train the network, export it, and write the files of ``data/``.

Run it with ``python -m dandelion.compositions.text_generation.train``; it needs the extra
``export``. The files are ``write_character.json`` (the function) and ``expected.json`` (what the
network, run by torch in double precision, makes of the prompts of the example).
"""

from __future__ import annotations

import importlib
import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from dandelion.compositions.text_topics.messages import write

from dandelion.documents import RegistrationDocument
from dandelion.export import export_module

from .bundle import OPTIONS, PROMPTS
from .texts import (
    EMPTY,
    END,
    LAYERS,
    LENGTH,
    VOCABULARY,
    WIDTH,
    noise_of,
    numbers_of,
    options_of,
    text_of,
)

DATA = Path(__file__).parent / "data"
SEED = 11
MESSAGES, EPOCHS, BATCH, RATE = 6000, 10, 50, 4e-3
HEADS = 4
INPUTS = ("text", "noise", "position", "keys", "values")
OUTPUTS = ("longer", "next_position", "next_keys", "next_values", "more")


def network(torch: Any) -> tuple[Any, Any]:
    """A transformer decoder like GPT-2, in two forms that share their weights.

    Returns:
        The form for training: numbers [rows, length] -> scores [rows, length, characters]; and that
        for one character, see `INPUTS` and `OUTPUTS`.
    """
    nn, functional = torch.nn, torch.nn.functional
    heads = (HEADS, WIDTH // HEADS)

    def module(forward: Callable[..., Any], **parts: Any) -> Any:
        made = type("Part", (nn.Module,), {"forward": forward})()
        for name, part in parts.items():
            setattr(made, name, part)
        return made

    def layer(self: Any, x: Any, attend: Callable[[Any, Any, Any], Any]) -> Any:
        x = x + self.out(attend(*self.into(self.first(x)).chunk(3, -1)))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))

    def scores(self: Any, x: Any) -> Any:
        return self.last(x) @ self.characters.weight.T

    def whole(self: Any, text: Any) -> Any:
        def attend(*parts: Any) -> Any:
            split = [part.unflatten(-1, heads).transpose(1, 2) for part in parts]
            seen = functional.scaled_dot_product_attention(*split, is_causal=True)
            return seen.transpose(1, 2).flatten(2)

        x = self.characters(text) + self.places.weight[: text.shape[1]]
        for one in self.layers:
            x = one(x, attend)
        return scores(self, x)

    def step(self: Any, text: Any, noise: Any, position: Any, keys: Any, values: Any) -> Any:
        net, places = self.net, torch.arange(LENGTH)
        here, behind = places == position[:, None], places == position[:, None] + 1
        now = torch.where(here, text, 0).sum(1)
        stored: list[tuple[Any, Any]] = []

        def attend(query: Any, key: Any, value: Any) -> Any:
            at = len(stored)
            key = torch.where(here[:, :, None], key[:, None], keys[:, at])
            value = torch.where(here[:, :, None], value[:, None], values[:, at])
            stored.append((key, value))
            split = [part.unflatten(-1, heads) for part in (query, key, value)]
            fit = (split[0][:, None] * split[1]).sum(-1) / heads[1] ** 0.5
            fit = torch.where((places <= position[:, None])[:, :, None], fit, -torch.inf)
            return (fit.softmax(1)[..., None] * split[2]).sum(1).flatten(1)

        x = net.characters(now) + net.places(position)
        for one in net.layers:
            x = one(x, attend)
        drawn = torch.where(here[:, :, None], noise, 0).sum(1)
        chosen = (scores(net, x) + drawn).argmax(-1)
        given = torch.where(behind, text, 0).sum(1)
        following = torch.where(given == EMPTY, chosen, given)
        more = (following != END) & (position < LENGTH - 2)
        return {
            "longer": torch.where(behind, following[:, None], text),
            "next_position": position + 1,
            "next_keys": torch.stack([key for key, _ in stored], 1),
            "next_values": torch.stack([value for _, value in stored], 1),
            "more": more.int(),
        }

    layers = [
        module(
            layer, into=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(WIDTH, WIDTH),
            wide=nn.Linear(WIDTH, 4 * WIDTH), narrow=nn.Linear(4 * WIDTH, WIDTH),
            first=nn.LayerNorm(WIDTH), second=nn.LayerNorm(WIDTH),
        )
        for _ in range(LAYERS)
    ]  # fmt: skip
    net = module(
        whole, characters=nn.Embedding(VOCABULARY, WIDTH), places=nn.Embedding(LENGTH, WIDTH),
        layers=nn.ModuleList(layers), last=nn.LayerNorm(WIDTH),
    )  # fmt: skip
    nn.init.normal_(net.characters.weight, std=0.1)
    nn.init.normal_(net.places.weight, std=0.1)
    return net, module(step, net=net)


def trained(torch: Any) -> Any:
    """Train on messages; returns the form for one character."""
    torch.manual_seed(SEED)
    net, step = network(torch)
    texts, _ = write(MESSAGES, SEED)
    numbers = [[*numbers_of(text), END][:LENGTH] for text in texts]
    x = torch.tensor([one + [EMPTY] * (LENGTH - len(one)) for one in numbers])
    steps = EPOCHS * -(-MESSAGES // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    for epoch in range(EPOCHS):
        for part in torch.randperm(MESSAGES).split(BATCH):
            given = x[part]
            found = net(given[:, :-1]).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(
                found, given[:, 1:].flatten(), ignore_index=EMPTY
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: {loss.item():.3f}", flush=True)
    return step.eval()


def examples(torch: Any) -> tuple[Any, ...]:
    """Inputs of one row."""
    stored = torch.zeros(1, LAYERS, LENGTH, WIDTH)
    text = torch.zeros(1, LENGTH, dtype=torch.int64)
    noise = torch.zeros(1, LENGTH, VOCABULARY)
    return text, noise, torch.zeros(1, dtype=torch.int64), stored, stored


def continued(torch: Any, step: Any, name: str, prompt: str, options: dict[str, Any]) -> str:
    """Continue a prompt as the composition does, in double precision."""
    temperature, seed = options_of(options)
    text, noise, position, keys, values = examples(torch)
    numbers = numbers_of(prompt)
    text[0, : len(numbers)] = torch.tensor(numbers)
    drawn = array("f", noise_of(temperature, f"{seed} {name}"))
    noise = torch.tensor(drawn.tolist()).view_as(noise).double()
    keys, values = keys.double(), values.double()
    for _ in range(LENGTH - 1):
        found = step(text, noise, position, keys, values)
        text, position, keys, values = (found[name] for name in OUTPUTS[:4])
        if not found["more"]:
            break
    return text_of(text[0].tolist())


def main() -> None:
    """Train and write."""
    torch: Any = importlib.import_module("torch")
    step = trained(torch)
    made = export_module(
        "write_character", step, examples(torch), inputs=INPUTS, absent_if_zero=["more"]
    )
    document = RegistrationDocument(functions=(made.function,))
    (DATA / "write_character.json").write_bytes(msgspec.json.encode(document))
    print("\n".join(made.report.lines()))
    exact = step.double()
    with torch.no_grad():
        found = [
            {
                name: continued(torch, exact, name, prompt, options)
                for name, prompt in PROMPTS.items()
            }
            for options in OPTIONS
        ]
    (DATA / "expected.json").write_text(json.dumps(found, indent=1) + "\n")
    for texts in found:
        print("\n".join(texts.values()))


if __name__ == "__main__":
    main()
