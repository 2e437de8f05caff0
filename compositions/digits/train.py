"""Train the digit network, and write the composition's files to ``data/``.

Run it with ``python -m dandelion.compositions.digits.train``; it needs scikit-learn (extra
``train``), only for the images: the network, its gradients and Adam are numpy.

The 1797 images are split by one seeded, stratified shuffle: 200 are held out, 300 select candidate
and epoch, 1297 are for training. The held-out images are used once, by the last lines, after all
choices. The files are ``heldout.npz`` (images as 8-bit grey values, labels), ``weights.npz`` and
``weights.json`` (training parameters and accuracy).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .oracle import CLASSES, SIDE, Array, logits, patches_of, pixels_to_images, softmax

DATA = Path(__file__).parent / "data"
SEED = 2026
HELD_OUT = 200
VALIDATION = 300
EPOCHS = 60
BATCH = 32
FILTER = 3

Tensors = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice of sizes and rates, evaluated on the validation images."""

    filters: int
    hidden: int
    rate: float = 2e-3
    decay: float = 1e-4


CANDIDATES = (Candidate(8, 32), Candidate(8, 64), Candidate(16, 64), Candidate(32, 64))


@dataclass(frozen=True, slots=True)
class Part:
    """Images [count, 8, 8] float32 in 0..1, their grey values and labels."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]

    @property
    def images(self) -> npt.NDArray[np.float32]:
        """The grey values scaled to 0..1."""
        return pixels_to_images(self.pixels)


def load() -> Part:
    """Read all images from scikit-learn; its values 0..16 become grey values 0..255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.floor(bunch.images * 255 / 16 + 0.5).astype(np.uint8)
    return Part(pixels, bunch.target.astype(np.uint8))


def split(whole: Part, rng: np.random.Generator) -> tuple[Part, Part, Part]:
    """Shuffle, then split the classes evenly: training, validation, held out."""
    order = rng.permutation(len(whole.labels))
    by_class = np.argsort(whole.labels[order], kind="stable")
    # Rank within the class, scaled to 0..1: sorting by it interleaves the classes evenly.
    labels = whole.labels[order][by_class]
    rank = np.empty(len(order))
    for digit in range(CLASSES):
        places = np.flatnonzero(labels == digit)
        rank[places] = (np.arange(len(places)) + 0.5) / len(places)
    dealt = order[by_class][np.argsort(rank, kind="stable")]
    cuts = np.split(dealt, [HELD_OUT, HELD_OUT + VALIDATION])
    held_out, validation, train = (Part(whole.pixels[c], whole.labels[c]) for c in cuts)
    return train, validation, held_out


def initial(candidate: Candidate, rng: np.random.Generator) -> Tensors:
    """Draw weights (He initialisation), zero biases."""
    inputs = candidate.filters * (SIDE // 2) ** 2

    def draw(fan_in: int, *shape: int) -> Array:
        drawn: Array = rng.standard_normal(shape) * np.sqrt(2 / fan_in)
        return drawn

    return {
        "conv_weights": draw(FILTER * FILTER, candidate.filters, FILTER, FILTER),
        "conv_bias": np.zeros(candidate.filters),
        "hidden_weights": draw(inputs, candidate.hidden, inputs),
        "hidden_bias": np.zeros(candidate.hidden),
        "output_weights": draw(candidate.hidden, CLASSES, candidate.hidden),
        "output_bias": np.zeros(CLASSES),
    }


def gradients(images: Array, labels: npt.NDArray[np.uint8], w: Tensors) -> Tensors:
    """Differentiate the mean cross-entropy of one batch."""
    count = len(images)
    patches = patches_of(images, FILTER)
    maps = np.einsum("byxij,fij->bfyx", patches, w["conv_weights"]) + w["conv_bias"][:, None, None]
    filters = maps.shape[1]
    half = SIDE // 2
    squares = maps.reshape(count, filters, half, 2, half, 2).transpose(0, 1, 2, 4, 3, 5)
    squares = squares.reshape(count, filters, half, half, 4)
    winner = squares.argmax(axis=-1)
    # ReLU and max-pool commute, and pooling first leaves a quarter of the work.
    best = np.take_along_axis(squares, winner[..., None], axis=-1)[..., 0]
    flat = np.maximum(best, 0).reshape(count, -1)
    hidden_sum = flat @ w["hidden_weights"].T + w["hidden_bias"]
    hidden = np.maximum(hidden_sum, 0)
    scores = hidden @ w["output_weights"].T + w["output_bias"]

    d_scores = softmax(scores)
    d_scores[np.arange(count), labels] -= 1
    d_scores /= count
    d_hidden = (d_scores @ w["output_weights"]) * (hidden_sum > 0)
    d_best = (d_hidden @ w["hidden_weights"]).reshape(best.shape) * (best > 0)
    d_squares = np.zeros_like(squares)
    np.put_along_axis(d_squares, winner[..., None], d_best[..., None], axis=-1)
    d_maps = d_squares.reshape(count, filters, half, half, 2, 2).transpose(0, 1, 2, 4, 3, 5)
    d_maps = d_maps.reshape(maps.shape)
    return {
        "conv_weights": np.einsum("byxij,bfyx->fij", patches, d_maps),
        "conv_bias": d_maps.sum(axis=(0, 2, 3)),
        "hidden_weights": d_hidden.T @ flat,
        "hidden_bias": d_hidden.sum(axis=0),
        "output_weights": d_scores.T @ hidden,
        "output_bias": d_scores.sum(axis=0),
    }


class Adam:
    """Adam with decoupled weight decay. Source: Kingma and Ba 2015; Loshchilov and Hutter 2019."""

    def __init__(self, weights: Tensors, decay: float) -> None:
        self._mean = {n: np.zeros_like(t) for n, t in weights.items()}
        self._square = {n: np.zeros_like(t) for n, t in weights.items()}
        self._decay = decay
        self._step = 0

    def update(self, weights: Tensors, slopes: Tensors, rate: float) -> None:
        """Move the weights in place by one step."""
        self._step += 1
        for name, slope in slopes.items():
            self._mean[name] += 0.1 * (slope - self._mean[name])
            self._square[name] += 0.001 * (slope**2 - self._square[name])
            mean = self._mean[name] / (1 - 0.9**self._step)
            square = self._square[name] / (1 - 0.999**self._step)
            weights[name] -= rate * (mean / (np.sqrt(square) + 1e-8) + self._decay * weights[name])


def shifted(images: Array, rng: np.random.Generator) -> Array:
    """Shift each image by -1, 0 or 1 pixel a direction, filled with zeros: cheap augmentation."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    corners = rng.integers(0, 3, (len(images), 2))
    return np.stack(
        [p[y : y + SIDE, x : x + SIDE] for p, (y, x) in zip(padded, corners, strict=True)]
    )


def accuracy(part: Part, weights: Tensors) -> float:
    """Return the fraction of the images whose largest score is their label's."""
    return float((logits(part.images, weights).argmax(axis=1) == part.labels).mean())


def loss(part: Part, weights: Tensors) -> float:
    """Return the mean cross-entropy in nats."""
    chances = softmax(logits(part.images, weights))
    return float(-np.log(chances[np.arange(len(part.labels)), part.labels]).mean())


def train(candidate: Candidate, part: Part, validation: Part) -> tuple[float, int, Tensors]:
    """Train one candidate.

    Returns:
        Validation loss, epoch and float32 weights of the epoch with the smallest validation loss.
    """
    rng = np.random.default_rng(SEED)
    weights = initial(candidate, rng)
    adam = Adam(weights, candidate.decay)
    images = part.images.astype(np.float64)
    best: tuple[float, int, Tensors] = (np.inf, 0, {})
    for epoch in range(1, EPOCHS + 1):
        rate = candidate.rate * 0.5 * (1 + np.cos(np.pi * (epoch - 1) / EPOCHS))
        order = rng.permutation(len(images))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            moved = shifted(images[batch], rng)
            adam.update(weights, gradients(moved, part.labels[batch], weights), rate)
        rounded = {n: t.astype(np.float32) for n, t in weights.items()}
        reached = loss(validation, rounded)
        if reached < best[0]:
            best = (reached, epoch, rounded)
    return best


def main() -> int:
    """Split, train each candidate, select the best by validation, test on the held-out images."""
    training, validation, held_out = split(load(), np.random.default_rng(SEED))
    tried = []
    for candidate in CANDIDATES:
        reached, epoch, weights = train(candidate, training, validation)
        print(f"{candidate}: validation loss {reached:.4f} at epoch {epoch}", file=sys.stderr)
        tried.append((reached, epoch, candidate, weights))
    reached, epoch, candidate, weights = min(tried, key=lambda t: t[0])
    report = {
        "seed": SEED,
        "candidate": dataclasses.asdict(candidate),
        "epoch": epoch,
        "tried": [
            {**dataclasses.asdict(c), "epoch": e, "validation_loss": round(v, 5)}
            for v, e, c, _ in tried
        ],
        "images": {
            "training": len(training.labels),
            "validation": len(validation.labels),
            "held_out": len(held_out.labels),
        },
        "validation_loss": round(reached, 5),
        "accuracy": {
            "training": round(accuracy(training, weights), 5),
            "validation": round(accuracy(validation, weights), 5),
            "held_out": round(accuracy(held_out, weights), 5),
        },
        "tensors": {n: {"shape": list(t.shape), "dtype": str(t.dtype)} for n, t in weights.items()},
    }
    DATA.mkdir(exist_ok=True)
    np.savez_compressed(DATA / "heldout.npz", pixels=held_out.pixels, labels=held_out.labels)
    np.savez_compressed(DATA / "weights.npz", **weights)  # type: ignore[arg-type]  # its stub
    (DATA / "weights.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["accuracy"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
