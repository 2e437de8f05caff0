"""What the experiments on KaaS share: sizes for this machine, and the systems of a shape."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dandelion.errors import DandelionError, InternalError

from ..experiment import Bench
from ..processes import Closeable
from ..records import Skip
from . import kaas_graphs, names
from .kaas_shapes import JACOBI, RESNET50, SHAPES, Scale, Shape, TunedShape, calibrated, tuned
from .nodes import MIB
from .tenant_load import closed_loop
from .tenant_process import TenantProcess, TenantReady, TenantStart
from .tenants import (
    Exclusive,
    SharedNode,
    Tenants,
    TimeSliced,
    mps_missing,
    mps_partitions,
)

CONSTANT_LIMIT_BYTES = 170_000_000
"""Constants of one tenant on a GPU, where many tenants are there at once."""

_POCL_THREADS = 16
_MANY = 16  # workers: as many as there are processes for 16 clients under MPS


def scaled(bench: Bench, shape: Shape, *, limit_bytes: int = CONSTANT_LIMIT_BYTES) -> Shape:
    """Give a shape in the size for this run.

    Args:
        shape: in the paper's size.
        limit_bytes: of the constants of a tenant on a GPU; 0 for any size.
    """
    size = max(1.0, shape.constant_bytes / limit_bytes) if limit_bytes else 1.0
    launches = 1 if shape.launches < 10 else 10
    quick, small = Scale(launches, 20.0, 1024.0, 64.0), Scale(launches, 10.0, 256.0, 16.0)
    return bench.pick(quick, small, Scale(constants=size)).of(shape)


def scaled_words(bench: Bench, *, limit_bytes: int = CONSTANT_LIMIT_BYTES) -> str:
    """Say what `scaled` did."""
    if bench.gpu and not bench.quick:
        limit = f"constants of a tenant at most {limit_bytes // 10**6} MB"
        return limit if limit_bytes else ""
    time, constants, buffers = bench.pick((20, 1024, 64), (10, 256, 16), (1, 1, 1))
    return (
        f"a tenth of the launches, 1/{time} of the time, 1/{constants} of the constants, "
        f"1/{buffers} of the other buffers"
    )


class ShapeFitter(Closeable):
    """The device, opened by a process without an engine; fits shapes to it.

    Raises:
        BackendUnavailable: there is none.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._process = TenantProcess(TenantStart(bench.backend))
        try:
            self.ready: TenantReady = self._process.wait()
        except BaseException:
            self._process.close()
            raise

    def fit(self, shape: Shape, *, empty: bool = False) -> TunedShape:
        """Give a shape whose requests take as long as they should on this device.

        Args:
            shape: in the size for this run.
            empty: its kernels shall do next to nothing instead.
        """
        threads = 0 if self._bench.gpu else _POCL_THREADS
        given = tuned(shape, self.ready.compute_units, threads=threads)
        if empty:
            return given
        self._bench.say(f"calibrating {shape.name}")
        count = self._bench.pick(3, 5, 5)
        return calibrated(given, lambda tried: statistics.median(self.times(tried, count)))

    def times(self, given: TunedShape, count: int) -> list[float]:
        """Time requests in the process itself, in microseconds."""
        return self._process.timed(given, count)

    def close(self) -> None:
        self._process.close()


def fitted(
    bench: Bench, shapes: Sequence[Shape], *, limit_bytes: int = CONSTANT_LIMIT_BYTES
) -> list[TunedShape]:
    """Fit shapes to the device; see `scaled`.

    Raises:
        BackendUnavailable: there is no device.
    """
    with ShapeFitter(bench) as fitter:
        return [fitter.fit(scaled(bench, shape, limit_bytes=limit_bytes)) for shape in shapes]


def shapes_of(bench: Bench) -> Sequence[Shape]:
    """Give the shapes for this run: a quick one has the smallest alone."""
    return (RESNET50,) if bench.quick else SHAPES


@dataclass(slots=True)
class TenantLineup:
    """The systems of one shape that are alive at the same time.

    Attributes:
        bodies: a request of each tenant.
        systems: all but MPS partitions, whose parts depend on the number of clients.
        skips: what could not be started.
    """

    bench: Bench
    given: TunedShape
    bodies: list[bytes]
    systems: list[Tenants] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)

    def partitions(self, clients: int) -> Tenants | None:
        """Start MPS partitions for so many clients; without them, None and a skip."""
        reason = mps_missing(self.bench.backend)
        try:
            if not reason:
                return mps_partitions(self.bench.backend, self.given, clients)
        except (DandelionError, OSError) as error:
            reason = str(error)
        if not any(skip.what == names.MPS for skip in self.skips):
            self.skips.append(Skip(names.MPS, reason))
        return None

    def check(self, system: Tenants, expected: list[bytes]) -> None:
        """Compare the replies of a system with those of the first one."""
        tenants = 1 if isinstance(system, Exclusive) else len(self.bodies)
        for tenant, body in enumerate(self.bodies[:tenants]):
            reply = system.call(tenant, body)
            if tenant == len(expected):
                expected.append(reply)
            if reply != expected[tenant]:
                raise InternalError(f"{system.name} gives another result for tenant {tenant}")

    def warm(self, system: Tenants, clients: int) -> None:
        """Let every tenant be served some times, so that all workers have seen its function."""
        bodies = self.bodies[: 1 if isinstance(system, Exclusive) else clients]
        times = 2 * max(3, system.workers) if isinstance(system, SharedNode) else 1
        most_s = self.bench.pick(0.3, 0.3, 1.5)
        closed_loop(system, bodies, seconds=0.05, least=times * len(bodies), most_s=most_s)

    def say(self, words: str) -> None:
        """Show progress."""
        self.bench.say(f"{self.given.shape.name}: {words}")


def contenders_of(
    bench: Bench, given: TunedShape, tenants: int
) -> dict[str, Callable[[], Tenants]]:
    """List the systems, and how each is started."""
    backend, document = bench.backend, kaas_graphs.document(given, tenants)

    def node(workers: int) -> Callable[[], Tenants]:
        return lambda: SharedNode(backend, given, tenants, workers=workers, document=document)

    small = given.shape.name in (RESNET50.name, JACOBI.name)  # several fit side by side
    starts = {names.SEQUENTIAL: node(0), names.CONCURRENT: node(2)}
    if bench.gpu and small:
        starts[names.concurrent(_MANY)] = node(_MANY)
    starts[names.TIME_SLICED] = lambda: TimeSliced(backend, given, tenants)
    starts[names.EXCLUSIVE] = lambda: Exclusive(backend, given)
    return starts


Contenders: TypeAlias = Callable[[Bench, TunedShape, int], dict[str, Callable[[], Tenants]]]
POLICIES = ("fair", "fifo", "affinity", "balance", "exclusive", "static")


def policies_of(bench: Bench, given: TunedShape, tenants: int) -> dict[str, Callable[[], Tenants]]:
    """List nodes with two workers, one for each policy, and how each is started.

    Each worker has room for the constants of half the tenants and one, so all constants fit if
    tenants keep their workers.
    """
    constants = given.shape.constant_bytes + 2 * MIB
    room = (tenants // 2 + 1) * constants
    document = kaas_graphs.document(given, tenants)

    def node(policy: str) -> Callable[[], Tenants]:
        return lambda: SharedNode(
            bench.backend, given, tenants, workers=2, policy=policy, weights_bytes=room,
            document=document,
        )  # fmt: skip

    return {policy: node(policy) for policy in bench.pick(POLICIES[2:5], POLICIES, POLICIES)}


@contextlib.contextmanager
def tenant_lineup(
    bench: Bench, given: TunedShape, tenants: int,
    contenders: Contenders = contenders_of,
) -> Iterator[TenantLineup]:  # fmt: skip
    """Start all systems for a shape and at most so many tenants, and compare their results."""
    bodies = [kaas_graphs.body(given.shape, bench.seed + tenant) for tenant in range(tenants)]
    lineup = TenantLineup(bench, given, bodies)
    expected: list[bytes] = []
    with contextlib.ExitStack() as stack:
        for name, start in contenders(bench, given, tenants).items():
            lineup.say(f"starting {name}")
            try:
                system = stack.enter_context(start())
                lineup.check(system, expected)
            except InternalError:
                raise
            except (DandelionError, OSError) as error:
                lineup.skips.append(Skip(f"{name}, {given.shape.name}", str(error)))
                continue
            lineup.systems.append(system)
        yield lineup
