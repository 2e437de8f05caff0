"""Start and end of the MPS daemon, with a replacement for NVIDIA's program."""

import os
from pathlib import Path

import pytest
from dandelion.backends.gpu.mps import CONTROL, MpsDaemon, share_by_mps

from dandelion.driver import load_driver
from dandelion.errors import InvalidInput

STAND_IN = """#!/bin/sh
# With -f: the daemon, until it receives quit. Without: sends quit.
pipe="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "$1" = "-f" ]; then
    test -z "$FAIL" || exit 1
    mkfifo "$pipe"
    read line < "$pipe"
    echo "$line" > "$SAID"
else
    cat > "$pipe"
fi
"""


@pytest.mark.parametrize("bad", ["0", "101", "x", "-1"])
def test_the_part_of_a_worker_is_checked(bad: str) -> None:
    with pytest.raises(InvalidInput):
        load_driver("cuda").configure({"worker_percentage": bad})


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / CONTROL
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somebody/elses")
    return tmp_path


def test_a_daemon_is_private_and_leaves_nothing(stand_in: Path) -> None:
    daemon = MpsDaemon()
    pipes = Path(daemon.variables["CUDA_MPS_PIPE_DIRECTORY"])
    assert (pipes / "control").exists()
    daemon.close()
    assert (stand_in / "said").read_text() == "quit -t 1\n"
    assert not daemon.folder.exists()
    daemon.close()


def test_workers_get_its_environment(stand_in: Path) -> None:
    driver = load_driver("cuda")
    driver.configure({"worker_percentage": "25"})
    sharing = driver.sharing().share("0")
    try:
        assert sharing.concurrent
        assert sharing.shared_fault_domain
        assert sharing.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert sharing.environment["CUDA_MPS_PIPE_DIRECTORY"] != "/somebody/elses"
    finally:
        sharing.close()


def test_without_a_daemon_workers_take_turns_and_say_so(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "1")
    failed = share_by_mps("")
    assert not failed.concurrent
    assert "did not come up" in failed.description
    monkeypatch.setenv("PATH", "/nowhere")
    missing = share_by_mps("")
    assert not missing.shared_fault_domain
    assert CONTROL in missing.description


@pytest.mark.parametrize(
    ("visible", "of_workers"),
    [
        ("1", "0"),
        ("3, 1", "0,1"),
        ("2,-1,0", "0"),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", None),
        ("", None),
    ],
)
def test_workers_see_the_devices_as_the_server_numbers_them(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, visible: str, of_workers: str | None
) -> None:
    """With the number that the node was given, a worker would find no device."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sharing = share_by_mps("")
    try:
        assert sharing.concurrent
        assert sharing.environment.get("CUDA_VISIBLE_DEVICES") == of_workers
    finally:
        sharing.close()
