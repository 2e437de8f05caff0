"""``dandelion completion SHELL``: a script that completes verbs and options in a shell."""

from __future__ import annotations

import shtab

from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments, make_parser


def run(arguments: Arguments, out: Output) -> int:
    """Print the script."""
    script: str = shtab.complete(make_parser(), shell=arguments.shell)
    out.raw(script.encode() + b"\n")
    return 0
