"""k-means: a step is repeated until no centre moves."""

import numpy as np

import dandelion as dd

TOLERANCE = 1e-9


@dd.function(outputs=["centers", "moved"])
def step(points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, float | None]:
    nearest = np.linalg.norm(points[:, None] - centers, axis=2).argmin(axis=1)
    new = np.array([points[nearest == k].mean(axis=0) for k in range(len(centers))])
    moved = float(np.abs(new - centers).max())
    return new, moved if moved > TOLERANCE else None


@dd.composition
def kmeans(points, centers):
    found = step(points, centers).repeat(100, feed="centers", until="moved")
    return {"centers": found.centers}
