"""The composition of ``digits.dandelion``, described in Python; it brings its functions along."""

from __future__ import annotations

from dandelion.dataflow.dsl import Returned, SetLike, composition, each, http

from . import bundle

decode, classify, tally = bundle.document().functions


@composition
def digits(requests: SetLike) -> Returned:
    """Fetch, decode and classify each file, and report on all."""
    pages = http(each(requests)).bodies
    return {"report": tally(classify(each(decode(each(pages)))))}
