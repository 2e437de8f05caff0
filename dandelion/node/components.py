"""The parts of a node: each is made here once, of the settings and of the parts before it."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from dandelion.driver import Driver
from dandelion.errors import Cancelled
from dandelion.executors import Surroundings
from dandelion.memory import SharedDomain, Transfers
from dandelion.node import kept_writer
from dandelion.node.activity import ActivityLog
from dandelion.node.attachment import ClusterPart
from dandelion.node.cache import ResultCache
from dandelion.node.call_logs import CallLogs
from dandelion.node.functions import FunctionStore
from dandelion.node.inputs import InputStager
from dandelion.node.invocation import Invocation
from dandelion.node.invoker import Invoker
from dandelion.node.job_threads import JobThreads
from dandelion.node.jobs import Jobs
from dandelion.node.kept_service import KeptService
from dandelion.node.loaded_backends import LoadedBackends, targets
from dandelion.node.loop import NodeLoop
from dandelion.node.observer import Recorder
from dandelion.node.opened_stores import OpenedStores
from dandelion.node.packages import NodePackages
from dandelion.node.runtime import Runtime
from dandelion.node.setting_choices import SettingChoices
from dandelion.node.spaces import Spaces
from dandelion.node.spans import span_sender
from dandelion.node.starting import EngineStarter
from dandelion.node.traces import TraceStore
from dandelion.registration import Target
from dandelion.scheduler import InvocationState, Scheduler, Tenant
from dandelion.secrets import SecretStore
from dandelion.settings import Settings, tracing_of

_JOB_THREADS = 8
T = TypeVar("T")


class NodeState(enum.Enum):
    """What a node is doing."""

    NEW = "new"
    RUNNING = "running"
    CLOSED = "closed"


class Components:
    """What a node consists of. Nothing runs before `Running.start`.

    Args:
        settings, drivers, cluster: see `Node`.

    Attributes:
        state: what the node is doing; only `Running` changes it.
        registering: held while the catalogue changes, and while it is closed.

    Raises:
        As `Node`.
    """

    def __init__(
        self, settings: Settings, drivers: Sequence[Driver], cluster: ClusterPart | None
    ) -> None:
        choices = SettingChoices.of(settings, [driver.name for driver in drivers])
        self.settings = settings
        self.cluster = cluster
        self.state = NodeState.NEW
        self.registering = threading.Lock()
        self.spans = span_sender(settings)
        self.backends = LoadedBackends(settings, drivers)
        self.secrets = SecretStore(settings.secrets)
        with contextlib.ExitStack() as opened:
            self.arena = SharedDomain(settings.arena_bytes)
            opened.callback(self.arena.close)
            self.stores = OpenedStores.open(settings.catalog, cluster, self._post)
            opened.callback(self.stores.close, cluster)
            self._make(choices)
            opened.pop_all()  # `Running` closes it

    def _make(self, choices: SettingChoices) -> None:
        """Make the parts that use the arena and the stores."""
        settings = self.settings
        self.transfers = Transfers()
        self.pool = JobThreads(_JOB_THREADS, "dandelion-job")
        self.cache = ResultCache(min(settings.cache_bytes, settings.arena_bytes // 2))
        self.traces = TraceStore(settings.keep_traces)
        self.logs = CallLogs(settings.log_bytes)
        self.activity = ActivityLog(settings.keep_invocations)
        self.recorder = Recorder(self.traces, self.activity, self.logs, self.spans)
        self.packages = NodePackages(settings, self.stores.catalog, self.backends.takes_packages)
        store = self._function_store()
        self.runtime = self._runtime(choices, store)
        self.around = Surroundings(
            self.runtime.answers, store, self.arena, self.transfers, self.pool
        )
        self.loop = NodeLoop(self.runtime, self.arena, self.pool)
        self.starter = EngineStarter(settings, self.around, self.runtime, choices.division)
        self.spaces = self._spaces()
        self.invoker = Invoker(
            self.spaces,
            self.loop,
            self.runtime,
            InputStager(self.backends.in_arena, self.arena, self.transfers),
            choices.partitioning,
            settings.default_deadline_s,
            tracing_of(settings),
        )
        self.kept_threads = JobThreads(kept_writer.THREADS, "dandelion-kept")
        self.kept = KeptService(
            settings,
            self.stores.kept,
            self.invoker,
            self.runtime,
            self.kept_threads,
            self.pool,
            choices.callbacks,
        )

    def _post(self, event: Callable[[], None]) -> None:
        self.runtime.post(event)

    def _function_store(self) -> FunctionStore:
        return FunctionStore(
            lambda tenant: self.spaces.of(tenant).catalog,
            self.arena,
            self.transfers,
            self.backends.in_arena,
            self.secrets,
            self.packages.environment,
        )

    def _runtime(self, choices: SettingChoices, store: FunctionStore) -> Runtime:
        settings = self.settings
        memory_bytes = settings.functions_bytes or settings.arena_bytes // 2
        scheduler = Scheduler(
            choices.policy, memory_bytes, store.sizes, settings.max_waiting, choices.division
        )
        return Runtime(
            scheduler,
            Jobs(store, self.cache, self.pool, self._post),
            self.recorder,
            _notify_caller,
            settings.spins_us[0],
            self.arena.recycle_some,
        )

    def _spaces(self) -> Spaces:
        return Spaces(
            self.stores.catalog,
            self.backends.platform,
            self.backends.checkers,
            self._targets,
            self.settings.caps,
            self.settings.fuse,
            self.secrets,
            self.backends.offered,
            self.packages.planned,
        )

    def _targets(self, format_name: str) -> list[Target]:
        return targets(self.backends.all, list(self.runtime.executors.values()), format_name)

    @property
    def running(self) -> bool:
        """Whether the node was started and not closed."""
        return self.state is NodeState.RUNNING

    def check_open(self) -> None:
        """Refuse what a closed node cannot do.

        Raises:
            Cancelled: the node is closed.
        """
        if self.state is NodeState.CLOSED:
            raise Cancelled("the node is closed")

    def ask(self, question: Callable[[], T]) -> T:
        """Call a function on the loop while there is one, else here; from any thread."""
        return self.loop.call(question)

    def forget(self, tenant: Tenant, name: str, versions: Sequence[int]) -> None:
        """Forget versions of a function that are no longer registered; on the loop."""
        self.cache.drop(f"{tenant.name}/{name}")
        for version in versions:
            self.runtime.removed(tenant, name, version)


def _notify_caller(invocation: InvocationState) -> None:
    assert isinstance(invocation, Invocation), "the node makes them"
    invocation.on_end(invocation)
