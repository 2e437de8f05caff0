"""S3 services for tests, and calls of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import boto3

from dandelion.driver import AsyncEngine

from .store_calls import store_engine
from .store_servers import KEY_ID, SECRET, FaultProxy

BUCKET = "pictures-of-tests"


def given_direct(server: str) -> Any:
    """A client of another library, and an empty bucket."""
    client = boto3.client(
        "s3",
        endpoint_url=server,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    for entry in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    return client


@contextlib.asynccontextmanager
async def s3(server: str, **options: str) -> AsyncIterator[AsyncEngine]:
    given = {
        "s_bucket": BUCKET,
        "s_endpoint": server,
        "s_key_id_env": "TEST_S3_KEY_ID",
        "s_secret_env": "TEST_S3_SECRET",
        **options,
    }
    async with store_engine("s3", **given) as made:
        yield made


def url_of(proxy: FaultProxy) -> str:
    return f"http://127.0.0.1:{proxy.port}"


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
