"""The digit network in numpy, as the reference for the kernels and for training.

Source: LeNet-style layers; convolution as cross-correlation with zero padding, as in the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]  # of one float type or another; numpy cannot say which
Weights: TypeAlias = Mapping[str, Array]

SIDE = 8
CLASSES = 10


def pixels_to_images(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Scale grey values 0..255 to 0..1 as `decode` does: one correctly rounded division each."""
    return pixels.astype(np.float32) / np.float32(255)


def convolve(images: Array, weights: Array, bias: Array) -> Array:
    """Correlate with each filter, with zeros around the image.

    Args:
        images: [batch, side, side].
        weights: [filters, size, size], size odd.
        bias: [filters].

    Returns:
        [batch, filters, side, side].
    """
    patches = patches_of(images, weights.shape[1])
    maps: Array = np.einsum("byxij,fij->bfyx", patches, weights) + bias[:, None, None]
    return maps


def patches_of(images: Array, size: int) -> Array:
    """View the neighbourhood of each pixel: [batch, side, side, size, size]."""
    margin = size // 2
    padded = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))


def max_pool(maps: Array) -> Array:
    """Keep the largest of each 2 x 2 square: [..., side, side] to [..., side / 2, side / 2]."""
    *front, height, width = maps.shape
    pooled: Array = maps.reshape(*front, height // 2, 2, width // 2, 2).max(axis=(-3, -1))
    return pooled


def logits(images: Array, weights: Weights, dtype: npt.DTypeLike = np.float64) -> Array:
    """Run the network.

    Args:
        images: [batch, 8, 8], values 0..1.
        weights: the tensors of ``data/weights.npz``.
        dtype: precision of all sums; with float64 the result is exact to float32 in practice, for
            any order of summation.

    Returns:
        [batch, 10], one score a digit.
    """
    w = {name: tensor.astype(dtype) for name, tensor in weights.items()}
    maps = convolve(images.astype(dtype), w["conv_weights"], w["conv_bias"])
    pooled = max_pool(np.maximum(maps, 0))
    hidden = pooled.reshape(len(images), -1) @ w["hidden_weights"].T + w["hidden_bias"]
    scores: Array = np.maximum(hidden, 0) @ w["output_weights"].T + w["output_bias"]
    return scores


def softmax(scores: Array) -> Array:
    """Turn scores [..., classes] into probabilities."""
    powers: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers
