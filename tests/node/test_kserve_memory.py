"""KServe v2: shared memory of clients, with the functions of Triton's client for it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from dandelion.errors import DandelionError, InvalidInput, TooMany
from dandelion.memory import HeapDomain
from dandelion.node import Settings
from dandelion.shared_regions import REGIONS_LIMIT, SharedRegion, SharedRegions
from dandelion.tokens.file import write_tokens

from .guarded import RECORDS, token
from .kserve_served import PREFIX, KServed, kserved

INPUT = np.arange(1000, dtype=np.float32)
SIZE = INPUT.nbytes


@pytest.fixture
def key() -> Iterator[str]:
    """A name of shared memory; what tests make under it is removed."""
    made = f"{PREFIX}{uuid.uuid4().hex}"
    yield made
    for path in Path("/dev/shm").glob(f"{made[1:]}*"):
        path.unlink()


@contextlib.contextmanager
def shared(key: str, size: int) -> Iterator[Any]:
    handle = shm.create_shared_memory_region("region", key, size)
    try:
        yield handle
    finally:
        with contextlib.suppress(shm.SharedMemoryException):
            shm.destroy_shared_memory_region(handle)


@pytest.fixture(scope="module")
def served() -> Iterator[KServed]:
    with kserved(2, shared_memory_prefix=PREFIX) as opened:
        yield opened


@pytest.fixture(params=[triton_http, triton_grpc], ids=["http", "grpc"])
def triton(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def client(served: KServed, triton: Any) -> Iterator[Any]:
    address = served.address if triton is triton_http else served.grpc_address
    with contextlib.closing(triton.InferenceServerClient(address)) as opened:
        yield opened
        opened.unregister_system_shared_memory()
    served.check_no_leak()


def placed(triton: Any, size: int, offset: int = 0, name: str = "in") -> Any:
    made = triton.InferInput("a", [size // 4], "FP32")
    made.set_shared_memory(name, size, offset)
    return made


def test_tensors_in_shared_memory(client: Any, triton: Any, key: str, served: KServed) -> None:
    with shared(key, 2 * SIZE + 64) as handle:
        shm.set_shared_memory_region(handle, [INPUT], 64)
        client.register_system_shared_memory("in", key, SIZE, 64)
        client.register_system_shared_memory("out", key, SIZE, 64 + SIZE)
        output = triton.InferRequestedOutput("b")
        output.set_shared_memory("out", SIZE)
        for number in range(6):  # by several connections, so by all frontends
            further = triton.InferenceServerClient(
                served.address if triton is triton_http else served.grpc_address
            )
            with contextlib.closing(further):
                shm.set_shared_memory_region(handle, [INPUT + number], 64)
                result = further.infer("echo", [placed(triton, SIZE)], outputs=[output])
            found = result.get_output("b")
            shape = found["shape"] if triton is triton_http else list(found.shape)
            assert shape == [1000]
            back = shm.get_contents_as_numpy(handle, np.float32, [1000], 64 + SIZE)
            assert np.array_equal(back, INPUT + number)
            del back
        mixed = client.infer("echo", [placed(triton, SIZE - 40, 40)])
        assert np.array_equal(mixed.as_numpy("b"), (INPUT + 5)[10:])
        assert names(client, triton) == {"in", "out"}
        client.unregister_system_shared_memory("in")
        assert names(client, triton) == {"out"}
        with pytest.raises(InferenceServerException, match="no shared memory region 'in'"):
            client.infer("echo", [placed(triton, SIZE)])


def names(client: Any, triton: Any) -> set[str]:
    status = client.get_system_shared_memory_status()
    return {one["name"] for one in status} if triton is triton_http else set(status.regions)


def test_parts_that_do_not_fit(client: Any, triton: Any, key: str) -> None:
    with shared(key, SIZE) as handle:
        shm.set_shared_memory_region(handle, [INPUT])
        client.register_system_shared_memory("in", key, SIZE)
        for size, offset in ((SIZE + 4, 0), (SIZE, 4), (4, 2**60)):
            with pytest.raises(InferenceServerException, match="do not lie in its"):
                client.infer("echo", [placed(triton, size, offset)])
        small = triton.InferRequestedOutput("b")
        small.set_shared_memory("in", SIZE - 4)
        with pytest.raises(InferenceServerException, match="4000 bytes, and 3996 are given"):
            client.infer("echo", [placed(triton, SIZE)], outputs=[small])
        assert client.infer("echo", [placed(triton, SIZE)]).as_numpy("b").size == 1000


def test_an_object_that_is_shortened_or_replaced(client: Any, triton: Any, key: str) -> None:
    path = Path("/dev/shm") / key[1:]
    path.write_bytes(INPUT.tobytes())
    client.register_system_shared_memory("in", key, SIZE)
    os.truncate(path, SIZE // 2)
    with pytest.raises(InferenceServerException, match="shorter than 4000"):
        client.infer("echo", [placed(triton, SIZE)])
    os.truncate(path, SIZE)
    assert client.infer("echo", [placed(triton, SIZE)]).as_numpy("b").size == 1000
    replacement = path.with_name(f"{path.name}.new")
    replacement.write_bytes(INPUT.tobytes())
    replacement.rename(path)
    with pytest.raises(InferenceServerException, match="not the object"):
        client.infer("echo", [placed(triton, SIZE)])
    path.unlink()
    with pytest.raises(InferenceServerException, match="No such file"):
        client.infer("echo", [placed(triton, SIZE)])


def test_an_object_that_is_shortened_while_it_is_read(key: str) -> None:
    path = Path("/dev/shm") / key[1:]
    path.write_bytes(INPUT.tobytes())
    regions = SharedRegions(Settings(shared_memory_prefix=PREFIX))
    regions.register(SharedRegion("in", key, 0, SIZE), "default")
    (region,) = regions.of("default")
    opened = region._opened

    def shortening(flags: int) -> int:
        descriptor = opened(flags)
        os.truncate(path, 8)
        return descriptor

    with pytest.raises(InvalidInput, match="shorter"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedRegion, "_opened", lambda self, flags: shortening(flags))
        region.read(HeapDomain(SIZE).acquire, 0, SIZE)


def test_regions_that_are_refused(key: str, tmp_path: Path) -> None:
    regions = SharedRegions(Settings(shared_memory_prefix=PREFIX))
    path = Path("/dev/shm") / key[1:]
    path.write_bytes(bytes(100))
    os.symlink("/etc/passwd", f"{path}.link")
    os.mkfifo(f"{path}.pipe")

    def refused(name: str, key: str, offset: int = 0, size: int = 100) -> str:
        with pytest.raises(DandelionError) as caught:
            regions.register(SharedRegion(name, key, offset, size), "default")
        return str(caught.value)

    assert "does not begin with" in refused("r", "/other")
    assert "does not begin with" in refused("r", f"{PREFIX}/../../etc/passwd")
    assert "does not begin with" in refused("r", f"{PREFIX}\0")
    assert "No such file" in refused("r", f"{key}.missing")
    assert "cannot open" in refused("r", f"{key}.link")
    assert "not a shared memory object" in refused("r", f"{key}.pipe")
    assert "fewer than 101" in refused("r", key, 1, 100)
    assert "not a region" in refused("r", key, -1, 1)
    assert "not a region" in refused("r", key, 0, 0)
    assert "characters" in refused("", key)
    regions.register(SharedRegion("r", key, 0, 100), "default")
    assert "unregister it before" in refused("r", key)
    for number in range(1, REGIONS_LIMIT):
        regions.register(SharedRegion(str(number), key, 0, 100), "default")
    with pytest.raises(TooMany):
        regions.register(SharedRegion("more", key, 0, 100), "default")
    regions.register(SharedRegion("more", key, 0, 100), "acme")
    regions.unregister(None, "default")
    assert [one.name for one in regions.of("acme")] == ["more"]


@pytest.mark.parametrize(
    ("prefix", "tokens"),
    [
        ("kserve", ""),
        ("/", ""),
        ("/a/b", ""),
        ("/a\0", ""),
        ("/kserve", "tokens.toml"),
        ("/kserve_{tenant}", ""),
        ("/kserve_{tenant}_", ""),
        ("/kserve_{tenant}.x", ""),
    ],
)
def test_prefixes_that_are_refused(prefix: str, tokens: str) -> None:
    with pytest.raises(InvalidInput, match="shared_memory_prefix"):
        SharedRegions(Settings(shared_memory_prefix=prefix, tokens=tokens))


def test_it_is_off_by_default_and_tenants_are_apart(tmp_path: Path, key: str) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, RECORDS)
    prefix = f"{key}:{{tenant}}:"
    with kserved(1, tokens=str(path), shared_memory_prefix=prefix) as served:

        def client(caller: str) -> Any:
            opened = triton_http.InferenceServerClient(served.address)
            return opened, {"Authorization": f"Bearer {token(caller)}"}

        (acme, acme_headers), (beta, beta_headers) = client("acme"), client("beta")
        own = f"{key}:acme:x"
        (Path("/dev/shm") / own[1:]).write_bytes(INPUT.tobytes())
        acme.register_system_shared_memory("in", own, SIZE, headers=acme_headers)
        with pytest.raises(InferenceServerException, match="does not begin with"):
            beta.register_system_shared_memory("in", own, SIZE, headers=beta_headers)
        assert beta.get_system_shared_memory_status(headers=beta_headers) == []
        beta.unregister_system_shared_memory(headers=beta_headers)
        assert len(acme.get_system_shared_memory_status(headers=acme_headers)) == 1
        acme.close()
        beta.close()
    with kserved(1) as served:
        opened = triton_http.InferenceServerClient(served.address)
        with pytest.raises(InferenceServerException, match="not enabled"):
            opened.register_system_shared_memory("in", own, SIZE)
        opened.unregister_system_shared_memory()
        opened.close()
