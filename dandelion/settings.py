"""Settings of a node. Every field can come from a TOML file, the environment or a flag."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, SupportsIndex

import msgspec

from dandelion.errors import InvalidInput, nearest
from dandelion.errors.misfits import misfit, misfit_text, named_type
from dandelion.limits import Limits
from dandelion.sizes import parse_size
from dandelion.trace_context import Tracing

MIB = 1024 * 1024
_SPIN_US, _LONG_SPIN_US = 1000, 3000
_MANY_CORES = 8


Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_MOST = 2**62
_MOST_SECONDS = 1e9
_MOST_ENGINES = 4096
Count = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=_MOST_SECONDS)]
Engines = Annotated[int, msgspec.Meta(le=_MOST_ENGINES)]
ARENA_LEAST_BYTES = 64 * 1024


class TenantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The quotas of one tenant; None is no limit.

    Attributes:
        weight: its share of engine time relative to other tenants that wait.
        invocations: running at once; more are refused.
        calls: on engines at once; more wait.
        arena_bytes: of inputs, results, code and constants in the arena. A result counts
            until its invocation ends, not while a client receives it.
        device_bytes: of constants that stay on each device.
        queue_length: calls that wait for an engine at once; more are refused.
        call_device_bytes: of device memory for one call; calls that need more are refused.
        share_constants: a device stores constants once that are equal to those of other tenants.
            Without it the tenant has copies of its own, and others cannot find out by the time of
            a call that it uses them. A change counts for functions that were not called before.
    """

    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    invocations: Count | None = None
    calls: Count | None = None
    arena_bytes: Count | None = None
    device_bytes: CountOrNone | None = None
    queue_length: Count | None = None
    call_device_bytes: Count | None = None
    share_constants: bool = True


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a node.

    Attributes:
        host: the address that the frontend listens on.
        port: its TCP port; 0 chooses a free one.
        hosts: further host names that requests may use, besides those of loopback and `host`; ``*``
            allows all.
        cors_origins: web pages that may call it, such as ``https://app.example.org``.
        tokens: file of bearer tokens, see ``dandelion token``. Without one, every caller is the
            tenant ``default`` and may do everything.
        allow_anonymous: without tokens, also listen on addresses that other machines reach.
        secrets: file of secrets for functions, see ``docs/secrets.md``.
        tls_cert: file of the certificate chain in PEM; the server then speaks TLS.
        tls_key: file of the certificate's private key in PEM.
        protocols: which protocols to serve beside the node's own, by name, see
            ``docs/protocols.md``.
        shared_memory_prefix: with KServe, clients may register shared memory objects whose names
            begin with this, such as ``/kserve``; none by default. ``{tenant}`` in it stands for the
            caller's tenant, and with tokens it must be there, see ``docs/kserve.md``.
        grpc_port: TCP port of KServe over gRPC; 0 chooses a free one, -1 is off. HTTP is then
            parsed in a process of its own, as with `frontends` above 1.
        grpc_max_calls: how many calls and streams of gRPC may be open at once; more are refused.
        http2: also serve HTTP/2, to clients that begin with it and, with TLS, to those that
            negotiate it; needs the extra ``http2``.
        frontends: how many processes of `dandelion serve` parse HTTP, at most 256; with 1 the
            node's does. The limits of connections below are divided among them.
        max_connections: limit of the frontend; fewer where the process may not open so many files.
            At the limit, idle connections are closed for new ones.
        max_connections_per_peer: limit of one address, or of one IPv6 network of 64 bits.
        head_timeout_s: how long the head of a request may take, from its first byte, or from the
            opening of the connection.
        idle_timeout_s: how long a connection may wait for its next request.
        body_timeout_s: time over which `body_rate_bytes` is averaged.
        body_rate_bytes: lowest rate in bytes a second at which a body must arrive, and a reply must
            be read.
        catalog: ``memory:``, ``sqlite:FOLDER``. Without it, `dandelion serve` uses the data folder
            of the user, ``$XDG_DATA_HOME/dandelion`` or ``~/.local/share/dandelion``; a node in a
            program keeps its catalogue in memory, see ``docs/registry.md``.
        backends: which backends to start; ``a|b`` starts the first of them that works here.
        options: settings of backends, by backend and name; as text ``BACKEND.NAME=VALUE``, such as
            ``http.allow=example.org``.
        engines: how many engines to start for a backend, or for an entry of `backends`; by default
            one for each resource; as text ``BACKEND=NUMBER``.
        arena_bytes: size of the arena, which is all host memory for data in flight.
        body_limit_bytes: largest request body.
        items_limit: how many items a request may have in all its sets.
        default_deadline_s: deadline of an invocation without one.
        max_waiting: invocations that may run or wait at once; more are refused.
        partitioning: partitions of ``any`` shardings: ``max``, ``fixed:N``, ``auto``,
            ``auto:CORES``.
        cache_bytes: memory for results of functions with `cache`; part of the arena, at most half
            of it.
        max_memory_bytes, max_wall_s, max_cpu_s, max_output_bytes, max_output_items: the largest
            limits that a function may declare.
        max_concurrency, max_queue_length: the same, of calls of a function on engines, and of those
            that wait.
        policy: which waiting call is next, and on which engine: ``fair`` (engine time by weight),
            ``fifo``, ``lifo``, ``deadline``, ``balance`` (equal load), ``affinity`` (functions keep
            their engines), ``exclusive`` (one tenant at a time), ``static`` (fixed engines).
        cores: how compute engines and I/O engines divide the machine's cores: ``shared`` (they do
            not: the system shares them), ``COMPUTE:IO`` such as ``3:1``, ``controlled`` (moved by
            load), or ``controlled:NUMBER`` for another number than the machine has. Each compute
            backend then runs as many calls at once as it has cores, and each I/O engine 15 for
            each core. GPU engines are not affected.
        fuse: run GPU functions of a composition that follow each other as one call, so that what
            they pass on stays on the device.
        packages_folder: folder with wheels, from which functions may have Python packages.
        packages_index: URL of a package index for the same, such as ``https://HOST/simple``; if
            there is a folder, it is searched first. With neither, functions cannot have packages.
        packages_cache: folder for prepared packages. By default that of a durable catalogue, else
            ``dandelion/packages`` in the user's folder for caches.
        packages_bytes: of all prepared packages together.
        functions_bytes: memory for code and constants of functions; part of the arena. By default
            one half of it.
        tenants: quotas and weights, by name of the tenant.
        keep_traces: how many traces of finished invocations are kept.
        log_bytes: memory for what the functions of a tenant wrote lately, see ``GET /v1/logs``; 0
            keeps nothing.
        otlp_endpoint: where spans are sent by OTLP over HTTP, such as ``http://127.0.0.1:4318``
            (``/v1/traces`` is added) or a URL with a path, which is used as it is. Empty: nowhere.
        otlp_ratio: of the invocations without a trace context, the part that is recorded. Others
            are recorded if their caller records them.
        otlp_headers: file of further headers for the collector, one ``NAME: VALUE`` a line, such as
            credentials.
        access_log: file to which a line of JSON is written for each request; ``-`` is standard
            error. Empty: none.
        keep_invocations: of how many ended invocations of each tenant a short record is kept.
        async_running: asynchronous invocations that run at once, at most half of `max_waiting`;
            more wait.
        async_keep_s: how long one is kept after its end.
        async_keep_number: how many a tenant keeps, those under way included; the oldest that ended
            are forgotten for new ones.
        async_keep_bytes: of inputs and results that a tenant keeps.
        async_attempts: how often one is begun if the node ends while it runs.
        async_deadline_s: deadline of each attempt, without one in the request.
        async_watchers: requests of a tenant that wait for asynchronous invocations at once.
        callback_allow: beginnings of URLs that may be called at the end of asynchronous
            invocations, such as ``https://hooks.example.org/dandelion/``; without any there are no
            callbacks.
        callback_networks: addresses that callbacks may reach though they are not public, such as
            ``10.0.0.0/8``.
        callback_secrets: file in TOML with a table ``secrets``: by tenant, what its callbacks are
            signed with.
        peers: addresses ``HOST:PORT`` of the nodes of a cluster that keep its catalogue, the same
            list on all nodes, this one included if it is one of them. See ``docs/cluster.md``.
        cluster: a Ray cluster by which the nodes find each other: ``auto`` for the one that this
            machine belongs to, ``local`` for a new one, or ``HOST:PORT``; needs the extra
            ``cluster``.
        cluster_reserve: resources of its Ray node that a node takes for itself, such as ``CPU=8``,
            ``GPU=1`` or own ones; while calls wait, Ray's autoscaler is asked for more such nodes.
        cluster_listen: the address for other nodes, ``HOST:PORT``; port 0 chooses a free one.
        cluster_address: how other nodes reach this one, if that is another address.
        cluster_secret: file with a secret of 16 bytes or more, which all nodes have.
        cluster_tls_cert, cluster_tls_key, cluster_tls_ca: files in PEM: the certificate chain of
            this node, its key, and the certificates that sign those of all nodes. With them the
            traffic between nodes is encrypted.
        cluster_store: where the log of the catalogue is kept instead of by a majority of `peers`:
            ``folder:PATH`` of a folder that all nodes have, or ``s3:NAME`` of a store in the
            options of the backend ``s3``. See ``docs/cluster.md``.
        cluster_copies_number: of how many asynchronous invocations that other nodes run a voter
            keeps a copy; of more it refuses one.
        cluster_copies_bytes: of their inputs and results.
        spin_us: how long the node's loop polls for answers of engine processes before it sleeps, at
            most, in microseconds. -1 is 3000 from 8 cores on, 1000 with fewer, and 0 with one; see
            ``docs/tuning.md``.
        engine_spin_us: the same for engine processes, which poll for the next call, and for answers
            of their kernel hosts. -1 is the same, too.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    tokens: str = ""
    allow_anonymous: bool = False
    secrets: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    protocols: tuple[str, ...] = ()
    shared_memory_prefix: str = ""
    grpc_port: Annotated[int, msgspec.Meta(ge=-1, le=65535)] = -1
    grpc_max_calls: Count = 256
    http2: bool = False
    frontends: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    max_connections: Count = 16384
    max_connections_per_peer: Count = 8192
    head_timeout_s: Seconds = 10.0
    idle_timeout_s: Seconds = 75.0
    body_timeout_s: Seconds = 10.0
    body_rate_bytes: Annotated[int, msgspec.Meta(ge=0)] = 8 * 1024
    catalog: str = "memory:"
    backends: tuple[str, ...] = ("null", "process", "native", "wasm", "http", "cuda|hip|opencl")
    options: dict[str, dict[str, str]] = {}
    engines: dict[str, Engines] = {}
    arena_bytes: Annotated[int, msgspec.Meta(ge=ARENA_LEAST_BYTES)] = 1024 * MIB
    body_limit_bytes: Count = 256 * MIB
    items_limit: Count = 100_000
    default_deadline_s: Seconds = 60.0
    max_waiting: Count = 4096
    partitioning: str = "auto"
    cache_bytes: CountOrNone = 64 * MIB
    max_memory_bytes: Count = 8192 * MIB
    max_wall_s: Seconds = 3600.0
    max_cpu_s: Seconds = 3600.0
    max_output_bytes: Count = 1024 * MIB
    max_output_items: Count = 1_000_000
    max_concurrency: Count = 1_000_000
    max_queue_length: Count = 1_000_000
    policy: str = "fair"
    cores: str = "shared"
    fuse: bool = True
    packages_folder: str = ""
    packages_index: str = ""
    packages_cache: str = ""
    packages_bytes: Count = 4096 * MIB
    functions_bytes: CountOrNone = 0
    tenants: dict[str, TenantSettings] = {}
    keep_traces: CountOrNone = 256
    log_bytes: CountOrNone = 1 * MIB
    otlp_endpoint: str = ""
    otlp_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    otlp_headers: str = ""
    access_log: str = ""
    keep_invocations: CountOrNone = 10_000
    async_running: Count = 1024
    async_keep_s: Seconds = 3600.0
    async_keep_number: Count = 10_000
    async_keep_bytes: Count = 1024 * MIB
    async_attempts: Count = 3
    async_deadline_s: Seconds = 3600.0
    async_watchers: Count = 1024
    callback_allow: tuple[str, ...] = ()
    callback_networks: tuple[str, ...] = ()
    callback_secrets: str = ""
    peers: tuple[str, ...] = ()
    cluster: str = ""
    cluster_reserve: dict[str, float] = {}
    cluster_listen: str = ""
    cluster_address: str = ""
    cluster_secret: str = ""
    cluster_tls_cert: str = ""
    cluster_tls_key: str = ""
    cluster_tls_ca: str = ""
    cluster_store: str = ""
    cluster_copies_number: Count = 100_000
    cluster_copies_bytes: Count = 4096 * MIB
    spin_us: int = -1
    engine_spin_us: int = -1

    def __post_init__(self) -> None:
        given: object = self.backends
        if isinstance(given, str):
            raise InvalidInput("backends", "a text instead of names", f'write ("{given}",)')

    @property
    def caps(self) -> Limits:
        """The largest limits that a function may have."""
        names = [field.name for field in msgspec.structs.fields(Limits)]
        return Limits(**{name: getattr(self, f"max_{name}") for name in names})

    @property
    def spins_us(self) -> tuple[int, int]:
        """Return `spin_us` and `engine_spin_us`; -1 is replaced by this machine's default."""
        cores = len(os.sched_getaffinity(0))
        usual = 0 if cores == 1 else _SPIN_US if cores < _MANY_CORES else _LONG_SPIN_US
        return (
            self.spin_us if self.spin_us >= 0 else usual,
            self.engine_spin_us if self.engine_spin_us >= 0 else usual,
        )


def tenant_settings(where: str, table: object) -> TenantSettings:
    """Read the quotas of a tenant from a table; its sizes may have a unit.

    Raises:
        InvalidInput: at `where`: there is no such quota, or a value is not valid.
    """
    values: dict[str, object] = dict(table) if isinstance(table, dict) else {}
    for name, value in values.items():
        if name not in TenantSettings.__struct_fields__:
            known = TenantSettings.__struct_fields__
            close = nearest(name, known)
            hint = f"did you mean '{close}'?" if close else f"they are {', '.join(known)}"
            raise InvalidInput(f"{where}.{name}", "no such setting of a tenant", hint)
        if isinstance(value, str) and name.endswith("_bytes"):
            values[name] = parse_size(f"{where}.{name}", value)
    try:
        return msgspec.convert(values if isinstance(table, dict) else table, TenantSettings)
    except msgspec.ValidationError as error:
        raise InvalidInput(where, misfit_text(error)) from None


def options_of(where: str, table: object) -> dict[str, dict[str, str]]:
    """Read the options of backends from a table; those of inner tables have names with dots.

    Raises:
        InvalidInput: at `where`: it is not a table of tables, or a value has no form as text.
    """
    options: dict[str, dict[str, str]] = {}
    for backend, given in table.items() if isinstance(table, dict) else [("", table)]:
        place = f"{where}.{backend}".rstrip(".")
        if not isinstance(given, dict):
            raise InvalidInput(place, f"{given!r} is not a table", "write [options.BACKEND]")
        found = dict(_texts_of_table(place, given))
        if found:
            options[backend] = found
    return options


def _texts_of_table(
    where: str, table: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield options as text: numbers too, and in inner tables also booleans and lists of text."""
    for name, value in table.items():
        match value:
            case dict():
                yield from _texts_of_table(f"{where}.{name}", value, f"{above}{name}.")
            case bool() if above:
                yield above + name, "yes" if value else "no"
            case str() | int() | float() if not isinstance(value, bool):
                yield above + name, str(value)
            case list() if above and all(isinstance(v, str) and "," not in v for v in value):
                yield above + name, ",".join(value)
            case _:
                raise InvalidInput(f"{where}.{name}", f"{value!r} is not text", "put it in quotes")


def checked_settings(settings: Settings) -> Settings:
    """Check settings that a program made; it may write them as a file has them, or give paths.

    Raises:
        InvalidInput: a value has the wrong type, or is out of range.
    """
    if not isinstance(settings, Settings):
        hint = "give dd.Settings(...); for a node that runs elsewhere use dd.Client(URL)"
        raise InvalidInput("settings", f"{named_type(settings)} is no Settings", hint)
    try:
        values = _plain(settings)
        for name, value in values.items():
            if isinstance(value, str) and name.endswith("_bytes"):
                values[name] = parse_size(f"settings.{name}", value)
            elif isinstance(value, str):
                _check_text(f"settings.{name}", value)
        if isinstance(values["options"], dict):
            values["options"] = options_of("settings.options", values["options"])
        if isinstance(values["tenants"], dict):
            values["tenants"] = {
                name: tenant_settings(f"settings.tenants.{name}", table)
                for name, table in values["tenants"].items()
            }
        for field in msgspec.structs.fields(Settings):
            check_entries(f"settings.{field.name}", values[field.name], field.type)
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        path, message = misfit(error)
        raise InvalidInput(f"settings.{path}", message) from None
    except TypeError as error:  # a value of another class
        raise InvalidInput("settings", str(error)) from None


def check_entries(where: str, value: object, kind: Any, *, strict: bool = True) -> None:
    """Check the entries of a value that is a table one by one, so that errors name the entry.

    Args:
        where: the setting, for errors.
        value: is not checked if it is no table.
        kind: the type of the setting.
        strict: whether numbers may not be text.

    Raises:
        InvalidInput: a name is not a text, or a value has the wrong type or is out of range.
    """
    for name, entry in value.items() if isinstance(value, dict) else ():
        if not isinstance(name, str):
            raise InvalidInput(where, f"the name {name!r} is not a text")
        try:
            msgspec.convert({name: entry}, kind, strict=strict)
        except msgspec.ValidationError as error:
            raise InvalidInput(where, f"{name}: {misfit(error)[1]}") from None


def checked_tenant_settings(where: str, settings: TenantSettings) -> TenantSettings:
    """Check quotas that a program made; sizes may have a unit.

    Raises:
        InvalidInput: at `where`: a value has the wrong type, or is out of range.
    """
    try:
        return tenant_settings(where, _plain(settings))
    except TypeError as error:
        raise InvalidInput(where, str(error)) from None


def _plain(settings: object) -> Any:
    return msgspec.to_builtins(settings, builtin_types=(bytes,), enc_hook=_plain_value)


def _check_text(where: str, text: str) -> None:
    if "\0" in text:
        raise InvalidInput(where, "it has a NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(where, f"{text[:40]!a} is not valid Unicode") from None


def _plain_value(value: object) -> str | int:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, SupportsIndex):  # an integer of numpy
        return operator.index(value)
    raise TypeError(f"{value!r:.80} is not a value of a setting")


def tracing_of(settings: Settings) -> Tracing:
    """Make what begins the spans of a node's invocations."""
    return Tracing(bool(settings.otlp_endpoint), settings.otlp_ratio)
