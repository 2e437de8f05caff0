"""The convolutional layer in numpy, and the filter that is registered with the function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.float32]

SIDE = 224
FILTER_SIDE = 5
FILTER_SEED = 5


def filter_weights() -> Images:
    """Make the filter: [5, 5] float32, normally distributed, always the same."""
    return np.random.default_rng(FILTER_SEED).standard_normal((FILTER_SIDE, FILTER_SIDE), "f4")


def layer(images: Images, weights: Images) -> Images:
    """Convolve (cross-correlate, zeros around the image), apply ReLU, max-pool by 2.

    Terms are added in single precision in the kernels' order, filter rows first, so results differ
    only by fused multiply-adds.

    Args:
        images: [batch, height, width].
        weights: [5, 5].

    Returns:
        [batch, height // 2, width // 2].
    """
    margin = FILTER_SIDE // 2
    _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
    total = np.zeros_like(images)
    for y in range(FILTER_SIDE):
        for x in range(FILTER_SIDE):
            total += padded[:, y : y + height, x : x + width] * weights[y, x]
    return max_pool(np.maximum(total, 0))


def max_pool(images: Images) -> Images:
    """Keep the largest of each 2 x 2 square; an odd last row or column is dropped."""
    batch, height, width = (images.shape[0], images.shape[1] // 2, images.shape[2] // 2)
    squares = images[:, : 2 * height, : 2 * width].reshape(batch, height, 2, width, 2)
    pooled: Images = squares.max(axis=(2, 4))
    return pooled
