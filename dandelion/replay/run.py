"""Runs a whole recording on a node in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dandelion.documents import RegistrationDocument
from dandelion.driver import needed_backends
from dandelion.function import Limits
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.node import Node
from dandelion.recording.records import Recording, decode_recording
from dandelion.replay.answers import RecordedDriver
from dandelion.settings import Settings

BACKENDS = ("null", "process", "native", "wasm", "cuda|hip|opencl")
"""Backends of compute functions."""
_READY_S = 120.0


def replay(
    recording: Recording,
    changes: Sequence[RegistrationDocument] = (),
    backends: Sequence[str] = BACKENDS,
    deadline_s: float | None = None,
    here: Settings | None = None,
    tenant: str = DEFAULT_TENANT,
) -> Recording:
    """Run a recording again, without any I/O.

    Args:
        recording: what is run.
        changes: other code: its functions and compositions replace those of the same name.
        backends: where compute functions run.
        deadline_s: of the invocation.
        here: settings of this machine: the source of Python packages, of which the recorded wheels
            are taken, and the file of secrets.
        tenant: whose secrets functions get.

    Returns:
        The recording of the new run; see `dandelion.recording.compare`.

    Raises:
        DandelionError: the code cannot be registered here, or no backend runs it.
    """
    given = here or Settings()
    formats = {name for one in (recording.document, *changes) for name in one.formats}
    settings = Settings(
        backends=needed_backends(backends, formats),
        keep_traces=0,
        packages_folder=given.packages_folder,
        packages_index=given.packages_index,
        packages_cache=given.packages_cache,
        secrets=given.secrets,
        partitioning=recording.partitioning,
        **_largest([recording.document, *changes]),
    )
    with Node(settings, [RecordedDriver(recording)]) as node:
        node.wait_ready(_READY_S)
        for document in (recording.document, *changes):
            node.register(document, tenant=tenant)
        restored = [recording.restored(one) for one in recording.inputs]
        inputs = dict(zip(recording.input_names, restored, strict=True))
        signature = node.signature(recording.name, tenant=tenant)
        sets = {spec.name: inputs.get(spec.name) for spec in signature.inputs}
        return decode_recording(
            node.record(recording.name, sets, deadline_s=deadline_s, tenant=tenant)
        )


def _largest(documents: Sequence[RegistrationDocument]) -> dict[str, Any]:
    """Give settings that permit the limits of all functions, whatever node they come from."""
    limits = [one.limits for document in documents for one in document.functions]
    default = Settings().caps
    names = [field.name for field in msgspec.structs.fields(Limits)]
    return {
        f"max_{name}": max([getattr(default, name), *(getattr(one, name) for one in limits)])
        for name in names
    }
