"""The grammar of the command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import msgspec

from dandelion import __version__
from dandelion.cli.grammar import MainParser, VerbParser
from dandelion.cli.invocation_arguments import GPU_BACKENDS, add_invocations, add_version
from dandelion.cli.project_arguments import add_projects
from dandelion.cli.settings import setting_help
from dandelion.settings import Settings

DEFAULT_URL = "http://127.0.0.1:8080"
KINDS = ("functions", "compositions", "libraries", "backends", "engines")
FORMATS = ("svg", "mermaid", "json", "text")


class Arguments(argparse.Namespace):
    """The parsed arguments. Each verb uses its own."""

    verb: str
    json: bool
    debug: bool
    url: str
    name: str
    version_: int | None
    paths: list[Path]
    kind: str | None
    sets: list[str]
    deadline: float | None
    priority: int
    output: Path | None
    raw: bool
    set_: str | None
    format: str | None
    source: str
    settings: Path | None
    log_level: str
    drain: int
    insecure: bool
    token: str | None
    ca: str | None
    token_verb: str
    tokens: str | None
    tenant: str
    rights: str
    expires_days: float | None
    rate: float | None
    burst: int | None
    bench_verb: str
    cluster_verb: str
    names: list[str]
    quick: bool
    backend: str | None
    inputs: list[str]
    outputs: str | None
    device: str
    no_check: bool
    function: str | None
    invocation: str | None
    follow: bool
    calls: bool
    call: str | None
    changes: list[Path]
    key: str
    callback: str
    wait: float | None
    state: str | None
    after: str
    limit: int
    folder: Path
    shell: str
    port: int
    undo: bool
    dry_run: bool
    yes: bool
    wheels: Path | None
    with_packages: bool


def make_parser() -> MainParser:
    """Make the parser of all verbs."""
    parser = MainParser(
        prog="dandelion",
        description="A dataflow composition engine for untrusted functions.",
        epilog="Exit codes: 0 done, 1 failed or invalid, 2 wrong usage, 3 node unreachable.",
    )
    parser.add_argument("--version", action="version", version=f"dandelion {__version__}")
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="COMMAND", parser_class=VerbParser
    )
    local, remote = _common()
    serve = verbs.add_parser("serve", parents=[local], help="run a node")
    serve.instead = (
        "; to serve what a file defines: dandelion dev FILE, or deploy FILE to this node"
    )
    _serve(serve)

    add_projects(verbs, local, remote)

    register = verbs.add_parser("register", parents=[remote], help="register functions, ...")
    register.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="*.dandelion, *.json, *.msgpack, a *.py with document(), or a folder",
    )
    add_invocations(verbs, local, remote)
    _views(verbs, remote)
    check = verbs.add_parser(
        "check", parents=[local], help="check compositions and blueprints without a node"
    )
    check.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    _export(verbs.add_parser("export", parents=[local], help="make a function of a PyTorch module"))
    _graph(verbs.add_parser("graph", parents=[remote], help="draw a composition"))
    verbs.add_parser("doctor", parents=[local], help="check what works on this machine")
    _token(verbs.add_parser("token", help="make, list and remove bearer tokens"), local)
    _bench(verbs.add_parser("bench", help="measure this machine and show results"), local)
    return parser


def _views(verbs: argparse._SubParsersAction[VerbParser], remote: VerbParser) -> None:
    """Add the verbs that show and remove what a node has."""
    listing = verbs.add_parser(
        "ls", parents=[remote], help="list registered names, backends or engines"
    )
    listing.add_argument("kind", nargs="?", metavar="KIND", help=", ".join(KINDS))
    capacity = verbs.add_parser(
        "capacity", parents=[remote], help="show what the node has and what is free"
    )
    capacity.add_argument(
        "name", nargs="?", metavar="FUNCTION", help="also tell what would happen to a call of it"
    )
    add_version(capacity)
    cluster = verbs.add_parser("cluster", help="show the nodes of a cluster")
    cluster_verbs = cluster.add_subparsers(dest="cluster_verb", required=True, metavar="COMMAND")
    cluster_verbs.add_parser("status", parents=[remote], help="show what a node knows of it")
    _logs(verbs.add_parser("logs", parents=[remote], help="show what functions wrote"))
    for verb, text in (("describe", "describe one name"), ("rm", "remove a name or a version")):
        named = verbs.add_parser(verb, parents=[remote], help=text)
        named.add_argument("name", metavar="NAME", help="a function, composition or library")
        add_version(named)


def _graph(graph: VerbParser) -> None:
    graph.add_argument("source", metavar="FILE|NAME", help="a *.dandelion or *.py file, or a name")
    graph.add_argument("--name", help="which composition of the file")
    graph.add_argument("--format", choices=FORMATS, help="default: by the output's suffix, or text")
    graph.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="*.svg, *.mmd, *.md, *.json or *.txt"
    )
    add_version(graph)


def _logs(logs: VerbParser) -> None:
    logs.add_argument("-f", "--follow", action="store_true", help="also show all later lines")
    logs.add_argument("--function", metavar="NAME", help="only lines of this function")
    logs.add_argument("--invocation", metavar="ID", help="only lines of this invocation")


def _common() -> tuple[VerbParser, VerbParser]:
    local = VerbParser(add_help=False)
    local.add_argument("--json", action="store_true", help="print JSON")
    local.add_argument("--debug", action="store_true", help="show tracebacks")
    remote = VerbParser(add_help=False, parents=[local])
    url = os.environ.get("DANDELION_URL", DEFAULT_URL)
    remote.add_argument(
        "--url", default=url, help="URL of the node (DANDELION_URL); default %(default)s"
    )
    remote.add_argument(
        "--token",
        metavar="TOKEN|@FILE",
        help="bearer token; better set DANDELION_TOKEN, since other users see command lines",
    )
    remote.add_argument(
        "--ca",
        default=os.environ.get("DANDELION_CA"),
        metavar="FILE",
        help="certificates in PEM that sign the node's (DANDELION_CA); default: the system's",
    )
    return local, remote


def _seconds(text: str) -> int:
    """Read a number of whole seconds."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of seconds")
    return int(text)


def _export(parser: VerbParser) -> None:
    parser.add_argument(
        "source",
        metavar="FILE:NAME|FILE.onnx",
        help="a module in a Python file, or a function there that returns (module, inputs)",
    )
    parser.add_argument(
        "--inputs",
        nargs="+",
        default=[],
        metavar="TYPE",
        help="types of the inputs, such as float32[1,3,224,224]",
    )
    parser.add_argument("--name", help="name of the function; default: NAME")
    parser.add_argument("--outputs", metavar="NAME,...", help="names of the outputs")
    parser.add_argument(
        "--absent-if-zero", metavar="NAME,...", default="",
        help="int32 outputs that are absent if their first element is zero; they can end loops",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("gpu", "cpu"), default="gpu", help="what it is optimised for"
    )
    parser.add_argument(
        "--precision", choices=("f32", "tf32", "bf16", "f16"), default="f32",
        help="what factors of float32 products are rounded to, where that is faster",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=_numbers, metavar="ROWS,...",
        help="sizes of the first dimension, such as 1,4,16; calls have any number up to the last",
    )  # fmt: skip
    parser.add_argument(
        "--batch-wait", type=float, default=0.0, metavar="SECONDS",
        help="how long a call waits for others to be joined with it, with --batch; default 0",
    )  # fmt: skip
    parser.add_argument(
        "--route", choices=("portable", "peak", "both"), default="portable",
        help="kernels for every device, or those of torch's compiler for one architecture",
    )  # fmt: skip
    parser.add_argument(
        "--target", default="", metavar="BACKEND:ARCH,...",
        help="architectures of the route peak, such as cuda:90 or hip:gfx942",
    )  # fmt: skip
    parser.add_argument(
        "--no-check", action="store_true", help="do not run it and compare it with the module"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="*.msgpack, *.json, or a folder (NAME)"
    )


def _numbers(text: str) -> tuple[int, ...]:
    """Read numbers with commas between them."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers such as 1,4,16")
    return tuple(map(int, parts))


def _serve(parser: VerbParser) -> None:
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="TOML; default: DANDELION_SETTINGS"
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    parser.add_argument(
        "--drain",
        type=_seconds,
        default=10,
        metavar="SECONDS",
        help="how long running requests may take after SIGTERM; default 10",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="the same as --allow-anonymous true"
    )
    group = parser.add_argument_group("settings", "each is also DANDELION_NAME in the environment")
    for field in msgspec.structs.fields(Settings):
        flag = "--" + field.name.replace("_", "-")
        group.add_argument(
            *([flag, "--wheels"] if field.name == "packages_folder" else [flag]),
            dest=f"setting_{field.name}",
            action="append",
            metavar="VALUE",
            help=setting_help(field.name).replace("%", "%%"),
        )


def _token(parser: VerbParser, local: VerbParser) -> None:
    verbs = parser.add_subparsers(dest="token_verb", required=True, metavar="COMMAND")
    new = verbs.add_parser("new", parents=[local], help="make a token and print it once")
    listing = verbs.add_parser("list", parents=[local], help="list tokens, without the tokens")
    remove = verbs.add_parser("remove", parents=[local], help="remove a token")
    for verb in (new, remove):
        verb.add_argument("name", metavar="NAME", help="name of the token, for logs")
    for verb in (new, listing, remove):
        verb.add_argument(
            "--tokens",
            default=os.environ.get("DANDELION_TOKENS"),
            metavar="FILE",
            help="file of tokens (DANDELION_TOKENS)",
        )
    new.add_argument(
        "--tenant", default="default", help="tenant of its requests; default %(default)s"
    )
    new.add_argument(
        "--rights",
        required=True,
        metavar="RIGHT,...",
        help="of invoke, register, read, operate",
    )
    new.add_argument("--expires-days", type=float, metavar="DAYS", help="default: never")
    new.add_argument("--rate", type=float, metavar="NUMBER", help="requests per second")
    new.add_argument("--burst", type=int, metavar="NUMBER", help="requests that may come at once")


def _bench(parser: VerbParser, local: VerbParser) -> None:
    verbs = parser.add_subparsers(dest="bench_verb", required=True, metavar="COMMAND")
    listing = verbs.add_parser("list", parents=[local], help="list experiments")
    running = verbs.add_parser("run", parents=[local], help="run experiments")
    for verb in (listing, running):
        verb.add_argument("names", nargs="*", default=[], metavar="NAME|GROUP", help="default: all")
    running.add_argument(
        "--quick", action="store_true", help="take seconds; results are only indications"
    )
    running.add_argument(
        "--backend",
        choices=GPU_BACKENDS,
        help="for GPU functions; default: the first that works",
    )
    _out(running, "DIR", "folder for JSON; default: bench/results, or bench-results if --quick")
    plot = verbs.add_parser("plot", parents=[local], help="draw saved results as SVG and PNG")
    _out(plot, "DIR", "default: bench-pictures")
    report = verbs.add_parser("report", parents=[local], help="write saved results as one page")
    _out(report, "FILE", "default: bench-report.html")
    for verb in (plot, report):
        verb.add_argument(
            "paths",
            nargs="*",
            default=[],
            type=Path,
            metavar="PATH",
            help="files or folders; default: the folder of the last run",
        )
    compare = verbs.add_parser("compare", parents=[local], help="compare two saved runs")
    compare.add_argument("paths", nargs=2, type=Path, metavar="PATH", help="old, then new")


def _out(parser: VerbParser, metavar: str, text: str) -> None:
    parser.add_argument("--out", dest="output", type=Path, metavar=metavar, help=text)
