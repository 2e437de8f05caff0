"""Every system has one look, and no two that are drawn together have the same."""

import itertools

import numpy as np
import pytest
from dandelion.bench.report.charts import PAPER
from dandelion.bench.systems import names
from dandelion.bench.systems.names import concurrent, known_names, style_of, styles_of
from numpy.typing import NDArray

DARK_PAPER = "#15181c"
TOGETHER = {
    "thesis": ["SEQUENTIAL", "CONCURRENT", "PROCESS", "DEDICATED", "DEDICATED_GRAPH", "BARE"],
    "kaas": ["SEQUENTIAL", "CONCURRENT", "EXCLUSIVE", "TIME_SLICED", "MPS"],
    "steps": ["NULL", "RAY_ACTORS", "RAY_GRAPH", "DASK", "BARE"],
    "serving": ["SEQUENTIAL", "CONCURRENT", "FASTAPI_TORCH", "LITSERVE", "TRITON", "RAY_ACTORS"],
    "sandboxes": ["PROCESS", "NATIVE", "WASM", "NULL"],
}
# Machado, Oliveira, Fernandes 2009: what people without one kind of cone see, in linear RGB.
SIGHT = {
    "all cones": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
}  # fmt: skip

Colour = NDArray[np.float64]


def linear(colour: str) -> Colour:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    dark, light = sorted(float(linear(c) @ weights) for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: Colour) -> Colour:
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("name", [*known_names(), *map(concurrent, (1, 4, 8, 3)), "anything"])
def test_colours_can_be_seen_on_white_and_on_dark_paper(name: str) -> None:
    assert contrast(style_of(name).colour, PAPER) >= 3
    assert contrast(style_of(name).colour, DARK_PAPER) >= 3


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("group", [*TOGETHER, "workers"])
def test_systems_that_are_drawn_together_stay_apart_for_everyone(group: str, sight: str) -> None:
    systems = [getattr(names, constant) for constant in TOGETHER.get(group, [])]
    systems = systems or [concurrent(n) for n in (1, 2, 4, 8)]
    for one, other in itertools.combinations(systems, 2):
        seen = [lab(SIGHT[sight] @ linear(style_of(name).colour)) for name in (one, other)]
        assert float(np.linalg.norm(seen[0] - seen[1])) > 13, (one, other)


def test_no_two_known_systems_look_the_same() -> None:
    styles = styles_of([*known_names(), *map(concurrent, (1, 4, 8))])
    assert len(set(styles.values())) == len(styles)
    for name, style in styles.items():
        assert style == style_of(name)


def test_two_workers_are_the_default() -> None:
    assert style_of(concurrent(2)) == style_of(names.CONCURRENT)


def test_variants_have_the_colour_of_their_system() -> None:
    variants = ["dedicated, graph, cold", "dedicated, graph: 50 % hot", names.DEDICATED_GRAPH]
    styles = styles_of(variants)
    assert {s.colour for s in styles.values()} == {style_of(names.DEDICATED_GRAPH).colour}
    assert len(set(styles.values())) == 3


def test_unknown_systems_look_the_same_each_time_and_apart_in_one_picture() -> None:
    unknown = [f"system {i}" for i in range(10)]
    assert [style_of(n) for n in unknown] == [style_of(n) for n in unknown]
    styles = styles_of([*unknown, *unknown])
    assert list(styles) == unknown
    assert len({s.colour for s in styles.values()}) == 10
    assert styles_of([unknown[3]]) == {unknown[3]: style_of(unknown[3])}
    many = styles_of(f"system {i}" for i in range(60))
    assert len(set(many.values())) == 60


def test_known_systems_keep_their_colour_beside_unknown_ones() -> None:
    styles = styles_of([*(f"system {i}" for i in range(8)), names.MPS, names.WASM])
    assert styles[names.MPS] == style_of(names.MPS)
    assert styles[names.WASM] == style_of(names.WASM)
