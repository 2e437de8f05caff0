"""Nodes whose catalogue is in a log store."""

from __future__ import annotations

import os

import boto3
import pytest

from dandelion.cluster import Cluster, ClusterSettings
from dandelion.documents import FunctionDocument
from dandelion.node import Node
from tests.cluster.clusters import SECRET, function, scripted, settings
from tests.store_servers import KEY_ID
from tests.store_servers import SECRET as S3_SECRET

Place = tuple[str, dict[str, dict[str, str]]]
"""A URL of a log store, and options of backends."""


def given_bucket(
    server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setenv("TEST_S3_KEY_ID", KEY_ID)
    monkeypatch.setenv("TEST_S3_SECRET", S3_SECRET)
    client = boto3.client(
        "s3",
        endpoint_url=server,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=S3_SECRET,
        region_name="us-east-1",
    )
    name = f"log-{os.urandom(4).hex()}"
    client.create_bucket(Bucket=name)
    return name


def s3_options(url: str, bucket: str, **more: str) -> dict[str, dict[str, str]]:
    given = {
        "bucket": bucket,
        "endpoint": url,
        "key_id_env": "TEST_S3_KEY_ID",
        "secret_env": "TEST_S3_SECRET",
        "tenants": "",
        "prefix": "cluster/",
        **more,
    }
    return {"s3": {"retries": "0", **{f"store.log.{name}": text for name, text in given.items()}}}


def member(place: Place, catalog: str = "memory:", peers: tuple[str, ...] = ()) -> Node:
    given = ClusterSettings(
        "127.0.0.1:0", SECRET, "", peers, store=place[0], store_options=place[1]
    )
    work = scripted(lambda engine, call: (call.inputs[0],))
    return Node(settings(catalog=catalog), [work], cluster=Cluster(given))


def echo(name: str, *inputs: str) -> FunctionDocument:
    return function(name, *inputs, code="null")


def registered(node: Node, document: FunctionDocument) -> int:
    return node.register(document)[0].version
