"""Layers of a network: a module of the user's project."""

import numpy as np


def dense(x, weights, bias):
    return x @ weights.T + bias


def relu(x):
    return np.maximum(x, 0)


def softmax(x):
    powers = np.exp(x - x.max())
    return powers / powers.sum()
