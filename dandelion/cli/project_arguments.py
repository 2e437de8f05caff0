"""The arguments of the commands for projects: from a file to a node."""

from __future__ import annotations

import argparse
from pathlib import Path

from dandelion.cli.grammar import VerbParser

SHELLS = ("bash", "zsh", "tcsh")


def add_projects(
    verbs: argparse._SubParsersAction[VerbParser], local: VerbParser, remote: VerbParser
) -> None:
    """Add the verbs for projects."""
    init = verbs.add_parser("init", parents=[local], help="write a small project that runs at once")
    init.add_argument("folder", nargs="?", type=Path, default=Path("."), metavar="FOLDER")
    init.add_argument(
        "--with-packages",
        action="store_true",
        help="also a module beside it, and packages that its functions contain",
    )
    once = verbs.add_parser("run", parents=[local], help="run a file once, without a node")
    once.add_argument("source", metavar="FILE[:NAME]", help="a Python file, and what of it")
    once.add_argument(
        "sets", nargs="*", default=[], metavar="SET=VALUE", help="as for 'dandelion invoke'"
    )
    once.add_argument("--deadline", type=float, metavar="SECONDS", help="deadline of it")
    add_outgoing(once)
    add_wheels(once)
    dev = verbs.add_parser("dev", parents=[local], help="a node that reloads a file as it changes")
    dev.add_argument("source", metavar="FILE", help="a Python file")
    dev.add_argument("--port", type=int, default=8080, metavar="NUMBER", help="default 8080")
    add_wheels(dev)
    wheels = verbs.add_parser(
        "wheels", parents=[local], help="download the packages that a file's functions name"
    )
    wheels.add_argument("source", metavar="FILE", help="a Python file")
    wheels.add_argument(
        "--to", dest="wheels", type=Path, metavar="DIR", help="default: wheels, beside the file"
    )
    deploy = verbs.add_parser(
        "deploy", parents=[remote], help="show what a file changes, and register it"
    )
    deploy.add_argument("paths", nargs=1, type=Path, metavar="FILE", help="as for register")
    deploy.add_argument("--dry-run", action="store_true", help="only show what would change")
    deploy.add_argument("--yes", action="store_true", help="also if callers break")
    deploy.add_argument("--undo", action="store_true", help="take the last deployment back")
    trace = verbs.add_parser("trace", parents=[remote], help="when calls of an invocation ran")
    trace.add_argument("name", metavar="ID", help="of an invocation that ended lately")
    trace.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it for Perfetto instead"
    )
    completion = verbs.add_parser("completion", parents=[local], help="complete words in a shell")
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    verbs.add_parser("top", parents=[remote], help="functions and invocations, as they change")


def add_wheels(parser: VerbParser) -> None:
    """Add where packages of functions come from."""
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="packages of functions come from here; default: wheels, beside the file",
    )


def add_outgoing(parser: VerbParser) -> None:
    """Add what is done with a result."""
    parser.add_argument("--set", dest="set_", metavar="NAME", help="only this output set")
    parser.add_argument("--raw", action="store_true", help="write the only item's bytes")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the only item's bytes to a file"
    )
