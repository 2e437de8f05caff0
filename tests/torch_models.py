"""Models in plain `torch.nn` with random weights, in their full and in reduced sizes.

Each function returns a module and example inputs; ``scale`` divides widths and depths. A full one
is exported by ``dandelion export tests/torch_models.py:resnet50 -o resnet50.msgpack``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Model = tuple[nn.Module, tuple[Any, ...]]
SMALL = 8
SEED = 7


def _ready(module: nn.Module, *examples: Any) -> Model:
    """Give statistics and biases values that matter."""
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):  # they begin as copies of one layer
            for weight in part.parameters():
                if weight.dim() > 1:
                    nn.init.xavier_uniform_(weight)
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.2, 0.2)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    return module.eval(), examples


# --- convolutional networks -----------------------------------------------------------------


def _norm_conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> nn.Sequential:
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class Residual(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        if bottleneck:
            parts = [
                _norm_conv(inputs, width, 1),
                _norm_conv(width, width, 3, stride),
                _norm_conv(width, outputs, 1, act=None),
            ]
        else:
            parts = [
                _norm_conv(inputs, width, 3, stride),
                _norm_conv(width, width, 3, act=None),
            ]
        self.body = nn.Sequential(*parts)
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else _norm_conv(inputs, outputs, 1, stride, act=None)

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, depths: list[int], bottleneck: bool, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_norm_conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        blocks, inputs = [], width
        for stage, depth in enumerate(depths):
            wide = width << stage
            for at in range(depth):
                stride = 2 if stage and not at else 1
                blocks.append(Residual(inputs, wide, stride, bottleneck))
                inputs = wide * (4 if bottleneck else 1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Any) -> Any:
        x = functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1)
        return self.head(torch.flatten(x, 1))


def resnet18(scale: int = 1, batch: int = 1) -> Model:
    side = 224 if scale == 1 else 32
    net = ResNet([2, 2, 2, 2] if scale == 1 else [1, 1], False, 64 // scale, 1000 // scale)
    return _ready(net, torch.randn(batch, 3, side, side))


def resnet50(scale: int = 1, batch: int = 1) -> Model:
    side = 224 if scale == 1 else 32
    net = ResNet([3, 4, 6, 3] if scale == 1 else [1, 2], True, 64 // scale, 1000 // scale)
    return _ready(net, torch.randn(batch, 3, side, side))


class Squeeze(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Any) -> Any:
        share = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.up(share))


class Inverted(nn.Module):
    def __init__(
        self, inputs: int, wide: int, outputs: int, kernel: int, stride: int, se: bool, act: Any
    ) -> None:
        super().__init__()
        self.same = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            _norm_conv(inputs, wide, 1, act=act) if wide != inputs else nn.Identity(),
            _norm_conv(wide, wide, kernel, stride, wide, act),
            Squeeze(wide, max(wide // 4, 8)) if se else nn.Identity(),
            _norm_conv(wide, outputs, 1, act=None),
        )

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.same else self.body(x)


MOBILE = [
    (16, 16, 3, 2, True, nn.ReLU), (72, 24, 3, 2, False, nn.ReLU), (88, 24, 3, 1, False, nn.ReLU),
    (96, 40, 5, 2, True, nn.Hardswish), (240, 40, 5, 1, True, nn.Hardswish),
    (240, 40, 5, 1, True, nn.Hardswish), (120, 48, 5, 1, True, nn.Hardswish),
    (144, 48, 5, 1, True, nn.Hardswish), (288, 96, 5, 2, True, nn.Hardswish),
    (576, 96, 5, 1, True, nn.Hardswish), (576, 96, 5, 1, True, nn.Hardswish),
]  # fmt: skip


def mobilenet_v3(scale: int = 1, batch: int = 1) -> Model:
    rows = MOBILE if scale == 1 else MOBILE[:4]
    side = 224 if scale == 1 else 32
    parts: list[nn.Module] = [_norm_conv(3, 16, 3, 2, act=nn.Hardswish)]
    inputs = 16
    for wide, outputs, kernel, stride, se, act in rows:
        parts.append(Inverted(inputs, wide, outputs, kernel, stride, se, act))
        inputs = outputs
    last = inputs * 6
    parts += [_norm_conv(inputs, last, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    parts += [
        nn.Linear(last, 1024 // scale),
        nn.Hardswish(),
        nn.Linear(1024 // scale, 1000 // scale),
    ]
    return _ready(nn.Sequential(*parts), torch.randn(batch, 3, side, side))


class Double(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_norm_conv(inputs, outputs, 3), _norm_conv(outputs, outputs, 3))

    def forward(self, x: Any) -> Any:
        return self.body(x)


class UNet(nn.Module):
    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            Double(a, b) for a, b in zip([3, *widths[:-2]], widths[:-1], strict=True)
        )
        self.middle = Double(widths[-2], widths[-1])
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(Double(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([kept.pop(), grow(x)], 1))
        return self.head(x)


def unet(scale: int = 1, batch: int = 1) -> Model:
    widths = [64, 128, 256, 512] if scale == 1 else [8, 16, 24]
    side = 128 if scale == 1 else 16
    return _ready(UNet(widths, 2), torch.randn(batch, 3, side, side))


# --- transformers ---------------------------------------------------------------------------


class ViT(nn.Module):
    def __init__(self, side: int, patch: int, width: int, depth: int, heads: int, n: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, n)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.body(x))[:, 0])


def vit_b_16(scale: int = 1, batch: int = 1) -> Model:
    sizes = (224, 16, 768, 12, 12, 1000) if scale == 1 else (32, 8, 32, 2, 4, 10)
    return _ready(ViT(*sizes), torch.randn(batch, 3, sizes[0], sizes[0]))


class Bert(nn.Module):
    def __init__(self, words: int, places: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, layer_norm_eps=1e-12
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pool = nn.Linear(width, width)

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        place = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.places(place) + self.types(token_type_ids))
        x = self.body(x, src_key_padding_mask=attention_mask == 0)
        return {"hidden": x, "pooled": torch.tanh(self.pool(x[:, 0]))}


def bert_base(scale: int = 1, batch: int = 1) -> Model:
    sizes = (30522, 512, 768, 12, 12) if scale == 1 else (200, 32, 32, 2, 4)
    tokens = 128 if scale == 1 else 12
    ids = torch.randint(0, sizes[0], (batch, tokens))
    mask = torch.ones(batch, tokens, dtype=torch.int64)
    mask[:, tokens * 3 // 4 :] = 0
    return _ready(Bert(*sizes), ids, mask, torch.randint(0, 2, (batch, tokens)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        parts = self.attn(self.ln_1(x)).split(width, 2)
        q, k, v = (p.view(batch, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(made.transpose(1, 2).reshape(batch, tokens, width))
        h = self.fc(self.ln_2(x))
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * torch.pow(h, 3))))
        return x + self.out(h)


class Gpt2(nn.Module):
    def __init__(self, words: int, places: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(places, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, input_ids: Any) -> Any:
        x = self.wte(input_ids) + self.wpe(
            torch.arange(input_ids.shape[1], device=input_ids.device)
        )
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x)[:, -1] @ self.wte.weight.T


def gpt2(scale: int = 1, batch: int = 1) -> Model:
    sizes = (50257, 1024, 768, 12, 12) if scale == 1 else (200, 32, 32, 2, 4)
    tokens = 128 if scale == 1 else 12
    return _ready(Gpt2(*sizes), torch.randint(0, sizes[0], (batch, tokens)))


# --- others ---------------------------------------------------------------------------------


class Lstm(nn.Module):
    def __init__(self, words: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.body = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Any) -> Any:
        return self.head(self.body(self.words(ids))[0][:, -1])


def lstm(scale: int = 1, batch: int = 1) -> Model:
    sizes = (5000, 256, 2, 8) if scale == 1 else (50, 16, 2, 4)
    tokens = 32 if scale == 1 else 5
    return _ready(Lstm(*sizes), torch.randint(0, sizes[0], (batch, tokens)))


class Denoiser(nn.Module):
    """One step of a diffusion model (DDIM): predict the noise, remove a part of it."""

    def __init__(self, width: int, steps: int = 1000) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.down = nn.Conv2d(width, width, 3, 2, 1)
        self.last = nn.Conv2d(width, 3, 3, padding=1)
        betas = torch.linspace(1e-4, 0.02, steps, dtype=torch.float64)
        self.register_buffer("alphas", torch.cumprod(1 - betas, 0).float())

    def block(self, at: int, x: Any, t: Any) -> Any:
        return x + self.convs[at](functional.silu(self.norms[at](x) + t[:, :, None, None]))

    def forward(self, x: Any, step: Any) -> Any:
        half = self.width // 2
        rate = torch.exp(-math.log(10000) * torch.arange(half, device=step.device) / half)
        angle = step[:, None].float() * rate
        t = self.time(torch.cat([angle.sin(), angle.cos()], 1).to(x.dtype))
        h = self.block(0, self.first(x), t)
        low = self.block(1, self.down(h), t)
        flat = low.flatten(2).transpose(1, 2)
        low = low + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(
            low
        )
        h = h + functional.interpolate(low, scale_factor=2.0, mode="nearest")
        noise = self.last(functional.silu(self.block(2, h, t)))
        now = self.alphas[step][:, None, None, None]
        after = self.alphas[(step - 20).clamp(min=0)][:, None, None, None]
        clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
        return after.sqrt() * clean + (1 - after).sqrt() * noise


def diffusion_step(scale: int = 1, batch: int = 1) -> Model:
    width, side = (128, 32) if scale == 1 else (16, 8)
    return _ready(Denoiser(width), torch.randn(batch, 3, side, side), torch.tensor([400] * batch))


def small_cnn(scale: int = 1, batch: int = 1) -> Model:
    net = nn.Sequential(
        _norm_conv(3, 16, 3), nn.MaxPool2d(2), _norm_conv(16, 32, 3), nn.MaxPool2d(2),
        _norm_conv(32, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    return _ready(net, torch.randn(batch, 3, 32, 32))


MODELS: dict[str, Callable[..., Model]] = {
    made.__name__: made
    for made in (
        *(resnet18, resnet50, mobilenet_v3, vit_b_16, bert_base, gpt2, unet, lstm, diffusion_step),
        small_cnn,
    )
}


def model(name: str, scale: int = 1, batch: int = 1) -> Model:
    """Make a model of `MODELS`, always with the same weights."""
    torch.manual_seed(SEED)
    return MODELS[name](scale, batch)
