"""A node's part of a cluster from its settings; ``dandelion serve`` calls it."""

from __future__ import annotations

import importlib

from dandelion.cluster.cluster import Cluster
from dandelion.cluster.discovery import Discovery
from dandelion.cluster.settings import cluster_settings
from dandelion.errors import BackendUnavailable, InternalError
from dandelion.settings import Settings


def cluster_of(settings: Settings) -> Cluster | None:
    """Make it if the settings name a cluster; raises as `joined`."""
    return None if cluster_settings(settings) is None else joined(settings)


def joined(settings: Settings) -> Cluster:
    """Make it; it joins when the node is started.

    Raises:
        InvalidInput: an address, the secret or a file cannot be used.
        BackendUnavailable: Ray is to be used, and is not installed.
    """
    given = cluster_settings(settings)
    if given is None:
        raise InternalError("the settings name no cluster")
    if not settings.cluster:
        return Cluster(given)
    try:
        ray_control = importlib.import_module("dandelion.cluster.ray_control")
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            "ray", f"{error.name} is not installed", "pip install 'dandelion-engine[cluster]'"
        ) from None
    discovery: Discovery = ray_control.RayControl(settings.cluster, settings.cluster_reserve)
    return Cluster(given, discovery)
