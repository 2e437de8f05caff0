"""The systems that share a device, all alive at the same time, for one shape of KaaS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dandelion.errors import DandelionError, InternalError

from ..experiment import Bench
from ..records import Skip
from . import kaas_graphs, names
from .kaas_shapes import JACOBI, RESNET50, SHAPES, Shape, Tuned
from .partitions import Exclusive, TimeSliced, mps_missing, mps_partitions
from .tenants import Dandelion, Tenants, closed_loop

Start = Callable[[], Tenants]
_MANY = 16  # workers: as many as there are processes for 16 clients under MPS


@dataclass(slots=True)
class Cast:
    """The systems of one shape that are alive at the same time.

    Attributes:
        given: the shape.
        bodies: a request of each tenant.
        systems: all but MPS partitions, whose parts depend on the number of clients.
        skips: what could not be started.
    """

    bench: Bench
    given: Tuned
    bodies: list[bytes]
    systems: list[Tenants] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)

    @property
    def tenants(self) -> int:
        """How many there are."""
        return len(self.bodies)

    def starts(self) -> dict[str, Start]:
        """Tell how each system is started, by name."""
        backend, given, tenants = self.bench.backend, self.given, self.tenants
        document = kaas_graphs.document(given, tenants)

        def node(workers: int) -> Start:
            return lambda: Dandelion(backend, given, tenants, workers=workers, document=document)

        small = given.shape.name in (RESNET50.name, JACOBI.name)  # several fit side by side
        starts: dict[str, Start] = {names.SEQUENTIAL: node(0), names.CONCURRENT: node(2)}
        if self.bench.gpu and small:
            starts[names.concurrent(_MANY)] = node(_MANY)
        starts[names.TIME_SLICED] = lambda: TimeSliced(backend, given, tenants)
        starts[names.EXCLUSIVE] = lambda: Exclusive(backend, given)
        return starts

    def partitions(self, clients: int) -> Tenants | None:
        """Start MPS partitions for so many clients, or say why there are none."""
        reason = mps_missing(self.bench.backend)
        try:
            if not reason:
                return mps_partitions(self.bench.backend, self.given, clients)
        except (DandelionError, OSError) as error:
            reason = str(error)
        if not any(skip.what == names.MPS for skip in self.skips):
            self.skips.append(Skip(names.MPS, reason))
        return None

    def agree(self, system: Tenants, expected: list[bytes]) -> None:
        """Hold the replies of a system against those that the first gave."""
        tenants = 1 if isinstance(system, Exclusive) else self.tenants
        for tenant, body in enumerate(self.bodies[:tenants]):
            reply = system.call(tenant, body)
            if tenant == len(expected):
                expected.append(reply)
            if reply != expected[tenant]:
                raise InternalError(f"{system.name} gives another result for tenant {tenant}")


@contextlib.contextmanager
def cast(bench: Bench, given: Tuned, tenants: int) -> Iterator[Cast]:
    """Start all systems for a shape, and see that they give the same results.

    Args:
        bench: of the run.
        given: the shape.
        tenants: how many there will be at most.
    """
    shape = given.shape
    bodies = [kaas_graphs.body(shape, bench.seed + tenant) for tenant in range(tenants)]
    made = Cast(bench, given, bodies)
    expected: list[bytes] = []
    with contextlib.ExitStack() as stack:
        for name, start in made.starts().items():
            bench.say(f"{shape.name}: starting {name}")
            try:
                system = stack.enter_context(start())
                made.agree(system, expected)
            except InternalError:
                raise
            except (DandelionError, OSError) as error:
                made.skips.append(Skip(f"{name}, {shape.name}", str(error)))
                continue
            made.systems.append(system)
        yield made


def warm(system: Tenants, bodies: Sequence[bytes], bench: Bench) -> None:
    """Have every tenant served some times, so that all workers have seen its function."""
    if isinstance(system, Exclusive):
        bodies = bodies[:1]
    times = 2 * max(3, system.workers) if isinstance(system, Dandelion) else 1
    most_s = bench.pick(0.3, 0.3, 1.5)
    closed_loop(system, bodies, seconds=0.05, least=times * len(bodies), most_s=most_s)


def shapes(bench: Bench) -> Sequence[Shape]:
    """Give the shapes for this run: a quick one takes the smallest alone."""
    return (RESNET50,) if bench.quick else SHAPES
