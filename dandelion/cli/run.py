"""``dandelion run FILE[:NAME] set=text ...``: register and invoke once, in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dandelion.cli.invoke import check_numbers, explaining_json, read_sets, show_result
from dandelion.cli.loading import load_program
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.cli.settings import load_settings
from dandelion.cli.wheel_folder import wheel_flags
from dandelion.data import ItemSet
from dandelion.documents import RegistrationDocument
from dandelion.driver import needed_backends
from dandelion.errors import nearest
from dandelion.frontend.client_protocol import request_body
from dandelion.frontend.codecs import decode_msgpack
from dandelion.node import Node

_READY_S = 120.0


def run(arguments: Arguments, out: Output) -> int:
    """Run once. Settings come from the environment, as for ``dandelion serve``."""
    path, name = split_target(arguments.source)
    document = _needed(load_program(path)[0], name)
    flags = {"catalog": ["memory:"], **wheel_flags(path, arguments.wheels)}
    with explaining_json(arguments.sets):
        given = read_sets(arguments.sets)
    settings = load_settings(None, os.environ, flags)
    backends = needed_backends(settings.backends, document.formats)
    with Node(msgspec.structs.replace(settings, backends=backends)) as node:
        node.wait_ready(_READY_S)
        registered = [r.name for r in node.register(document) if r.kind != "library"]
        chosen = _chosen(name, registered, document)
        with explaining_json(arguments.sets):
            check_numbers(arguments.sets, lambda: node.signature(chosen).inputs)
            sets = _declared_sets(node, chosen, given)
            result = node.invoke_sets(chosen, sets, deadline_s=arguments.deadline)
        show_result(arguments, out, "", result.sets)
    return 0


def _needed(document: RegistrationDocument, name: str) -> RegistrationDocument:
    """Leave out what a function does not need: others may have packages that are not here."""
    functions = tuple([function for function in document.functions if function.name == name])
    if not functions:  # a composition, or nothing was named
        return document
    return msgspec.structs.replace(document, functions=functions, compositions=())


def _declared_sets(node: Node, name: str, given: Mapping[str, Any]) -> Mapping[str, ItemSet | None]:
    """Make sets of what was given as a node does that gets it from ``dandelion invoke``."""
    specs = {spec.name: spec for spec in node.signature(name).inputs}
    return decode_msgpack(b"".join(request_body(given)), specs)


def split_target(text: str) -> tuple[Path, str]:
    """Split ``FILE:NAME``; without a name it is empty.

    Raises:
        WrongUsage: there is no such file.
    """
    file, colon, name = text.rpartition(":")
    path = Path(file) if colon and Path(file).exists() else Path(text)
    if not path.exists():
        raise WrongUsage(str(path), "no such file", "write FILE.py or FILE.py:NAME")
    return path, name if str(path) == file else ""


def _chosen(name: str, registered: list[str], document: RegistrationDocument) -> str:
    if name:
        if name not in registered:
            close = nearest(name, registered)
            hint = f"did you mean '{close}'?" if close else f"it has {', '.join(registered)}"
            raise WrongUsage(name, "the file has no function or composition of this name", hint)
        return name
    functions = {function.name for function in document.functions}
    compositions = [one for one in registered if one not in functions]
    if len(compositions) == 1:
        return compositions[0]
    if not compositions and len(registered) == 1:
        return registered[0]
    listed = ", ".join(compositions or registered)
    several = "compositions" if compositions else "functions"
    raise WrongUsage("FILE", f"it has several {several}", f"write FILE:NAME with one of {listed}")
