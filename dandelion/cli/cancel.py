"""``dandelion cancel ID``: end asynchronous invocations, or forget those that have ended."""

from __future__ import annotations

from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.frontend.kept_documents import kept_document


def run(arguments: Arguments, out: Output) -> int:
    """Cancel or forget each."""
    with connect(arguments) as client:
        views = [client.submitted(id_).cancel() for id_ in arguments.names]
    if out.as_json:
        out.document([kept_document(view) for view in views])
        return 0
    for view in views:
        done = "forgotten" if view.state.has_ended else "is being cancelled"
        out.line(f"{view.id} {done}; its state was {view.state.value}")
    return 0
