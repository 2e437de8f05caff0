"""The arguments of the commands that invoke: at once, asynchronously, recorded, replayed."""

from __future__ import annotations

import argparse
from pathlib import Path

from dandelion.asynchronous.records import KeptState
from dandelion.cli.grammar import VerbParser
from dandelion.cli.project_arguments import add_outgoing, add_wheels

GPU_BACKENDS = ("cuda", "hip", "opencl")


def add_invocations(
    verbs: argparse._SubParsersAction[VerbParser], local: VerbParser, remote: VerbParser
) -> None:
    """Add the verbs for invocations."""
    _invoke(verbs.add_parser("invoke", parents=[remote], help="invoke a function or composition"))
    _record(verbs.add_parser("record", parents=[remote], help="invoke, and save a recording"))
    _replay(verbs.add_parser("replay", parents=[local], help="run a recording again, offline"))
    _asynchronous(verbs, remote)


def _asynchronous(verbs: argparse._SubParsersAction[VerbParser], remote: VerbParser) -> None:
    """Add the verbs for asynchronous invocations."""
    submit = verbs.add_parser("submit", parents=[remote], help="begin an asynchronous invocation")
    _given(submit)
    _key(submit)
    submit.add_argument(
        "--callback", default="", metavar="URL", help="to be called at the end, if allowed"
    )
    listing = verbs.add_parser(
        "invocations", parents=[remote], help="list asynchronous invocations, or show one"
    )
    listing.add_argument("name", nargs="?", metavar="ID", help="default: list all, newest first")
    states = [state.value for state in KeptState]
    listing.add_argument("--state", choices=states, help="only those in this state")
    listing.add_argument("--limit", type=int, default=100, metavar="NUMBER", help="default 100")
    listing.add_argument("--after", default="", metavar="PLACE", help="continue a list")
    for verb in (submit, listing):
        verb.add_argument("--follow", action="store_true", help="print what happens until it ends")
    result = verbs.add_parser("result", parents=[remote], help="wait for a result and show it")
    result.add_argument("name", metavar="ID", help="of an asynchronous invocation")
    result.add_argument(
        "--wait", type=float, metavar="SECONDS", help="how long; default: without limit"
    )
    add_outgoing(result)
    cancel = verbs.add_parser(
        "cancel", parents=[remote], help="cancel asynchronous invocations, or forget ended ones"
    )
    cancel.add_argument("names", nargs="+", metavar="ID", help="of an asynchronous invocation")


def _invoke(parser: VerbParser) -> None:
    _given(parser)
    _key(parser)
    add_outgoing(parser)


def _key(parser: VerbParser) -> None:
    text = "idempotency key: invoke the same only once"
    parser.add_argument("--key", default="", metavar="KEY", help=text)


def _given(parser: VerbParser) -> None:
    """Add what is invoked."""
    parser.add_argument("name", metavar="NAME", help="a function or composition")
    parser.add_argument(
        "sets",
        nargs="*",
        default=[],
        metavar="SET=VALUE",
        help="set=text, set=@file (@- is standard input), set:=json; repeat for more items",
    )
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="deadline of the invocation"
    )
    parser.add_argument(
        "--priority",
        type=int,
        default=0,
        metavar="NUMBER",
        help="among waiting calls of the same tenant, from -1000 to 1000; higher is first",
    )
    add_version(parser)


def _record(parser: VerbParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a function or composition")
    parser.add_argument(
        "sets", nargs="*", default=[], metavar="SET=VALUE", help="as for 'dandelion invoke'"
    )
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="deadline of the invocation"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: ID.recording")
    add_version(parser)


def _replay(parser: VerbParser) -> None:
    parser.add_argument("paths", nargs=1, type=Path, metavar="FILE", help="a recording")
    parser.add_argument("--calls", action="store_true", help="only list the recorded calls")
    parser.add_argument(
        "--debug-call",
        dest="call",
        metavar="CALL",
        help="run one call of a Python function in the debugger, such as 'resize[3]'; "
        "without a sandbox, with your rights",
    )
    parser.add_argument(
        "--with",
        dest="changes",
        nargs="+",
        default=[],
        type=Path,
        metavar="PATH",
        help="other code, as for 'dandelion register'",
    )
    parser.add_argument(
        "--backend",
        choices=GPU_BACKENDS,
        help="for GPU functions; default: the first that works",
    )
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="deadline of the invocation"
    )
    parser.add_argument(
        "--tenant", default="default", help="whose secrets functions get; default %(default)s"
    )
    add_wheels(parser)


def add_version(parser: VerbParser) -> None:
    """Add which version of a name is meant."""
    parser.add_argument("--version", type=int, dest="version_", metavar="N", help="default: newest")
