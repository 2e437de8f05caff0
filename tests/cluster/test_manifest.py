"""The manifest for KubeRay in ``docs/cluster.md``: its fields are those of KubeRay's types."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dandelion.cli.parser import make_parser

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
CLUSTER = {"rayVersion", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec"}
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def documents() -> list[dict[str, Any]]:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return list(yaml.safe_load_all(text))


def test_fields_are_known_and_parts_refer_to_each_other() -> None:
    service, cluster = documents()
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    spec = cluster["spec"]
    assert spec.keys() == CLUSTER | {"workerGroupSpecs"}
    head, [worker] = spec["headGroupSpec"], spec["workerGroupSpecs"]
    assert head.keys() == {"rayStartParams", "template"}
    assert worker.keys() == GROUP
    assert worker["minReplicas"] <= worker["replicas"] <= worker["maxReplicas"]
    for group in (head, worker):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for mount in pod["containers"][0]["volumeMounts"]:
            assert mount["name"] in volumes
    assert json.loads(json.loads(worker["rayStartParams"]["resources"])) == {"dandelion": 1}
    assert service["spec"]["selector"]["ray.io/cluster"] == cluster["metadata"]["name"]
    assert head["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_the_commands_are_those_of_the_program() -> None:
    cluster = documents()[1]["spec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        hook = group["template"]["spec"]["containers"][0]["lifecycle"]["postStart"]
        words = hook["exec"]["command"][2].split()
        given = words[words.index("dandelion") + 1 : -1]
        assert make_parser().parse_args(given).verb == "serve"
