"""Inference with a small network, whose weights are fixed at registration."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import dandelion as dd

from .layers import dense, relu, softmax

rng = np.random.default_rng(1)
WEIGHTS = {
    "hidden": rng.normal(size=(16, 64)).astype("float32"),
    "output": rng.normal(size=(10, 16)).astype("float32"),
}


@dataclass
class Answer:
    digit: int
    confidence: float


@dd.function(static={"weights": WEIGHTS})
def classify(
    image: npt.NDArray[np.float32], weights: dict[str, np.ndarray], bias: float = 0.0
) -> Answer:
    hidden = relu(dense(image.reshape(-1), weights["hidden"], bias))
    scores = softmax(dense(hidden, weights["output"], 0))
    return Answer(int(scores.argmax()), float(scores.max()))


@dd.composition
def inference(images):
    return classify(dd.each(images))
