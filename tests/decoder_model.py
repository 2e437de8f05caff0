"""FIXTURE. A decoder like GPT-2 as a step of a loop: one token, with stored keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

FED = {"text": "longer", "position": "next_position", "keys": "next_keys", "values": "next_values"}


class DecoderStep(nn.Module):
    """One token after the other, the likeliest, until there is no room left.

    Args:
        layers, width, heads, length, tokens: of the model.
    """

    def __init__(self, layers: int, width: int, heads: int, length: int, tokens: int) -> None:
        super().__init__()
        self.layers, self.heads, self.length = layers, heads, length
        self.width = width
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)

        def many(made: Any) -> nn.ModuleList:
            return nn.ModuleList(made() for _ in range(layers))

        self.into = many(lambda: nn.Linear(width, 3 * width))
        self.out = many(lambda: nn.Linear(width, width))
        self.wide = many(lambda: nn.Linear(width, 4 * width))
        self.narrow = many(lambda: nn.Linear(4 * width, width))
        self.first = many(lambda: nn.LayerNorm(width))
        self.second = many(lambda: nn.LayerNorm(width))
        self.last = nn.LayerNorm(width)

    def forward(self, text: Any, position: Any, keys: Any, values: Any) -> dict[str, Any]:
        places = torch.arange(self.length, device=text.device)
        here, behind = places == position[:, None], places == position[:, None] + 1
        until = (places <= position[:, None])[:, None, None]
        x = self.tokens(torch.where(here, text, 0).sum(1)) + self.places(position)
        stored: list[tuple[Any, Any]] = []
        for at in range(self.layers):
            query, key, value = self.into[at](self.first[at](x)).chunk(3, -1)
            key = torch.where(here[:, :, None], key[:, None], keys[:, at])
            value = torch.where(here[:, :, None], value[:, None], values[:, at])
            stored.append((key, value))
            split = [
                part.view(-1, rows, self.heads, self.width // self.heads).transpose(1, 2)
                for part, rows in ((query, 1), (key, self.length), (value, self.length))
            ]
            seen = functional.scaled_dot_product_attention(*split, attn_mask=until)
            x = x + self.out[at](seen.transpose(1, 2).flatten(1))
            x = x + self.narrow[at](functional.gelu(self.wide[at](self.second[at](x))))
        following = (self.last(x) @ self.tokens.weight.T).argmax(-1)
        return {
            "longer": torch.where(behind, following[:, None], text),
            "next_position": position + 1,
            "next_keys": torch.stack([key for key, _ in stored], 1),
            "next_values": torch.stack([value for _, value in stored], 1),
            "more": (position < self.length - 2).int(),
        }

    def begin(self, token: int) -> tuple[Any, ...]:
        """Inputs of the first step, for a text that begins with a token."""
        text = torch.zeros(1, self.length, dtype=torch.int64)
        text[0, 0] = token
        dtype = self.last.weight.dtype
        stored = torch.zeros(1, self.layers, self.length, self.width, dtype=dtype)
        return text, torch.zeros(1, dtype=torch.int64), stored, stored.clone()
