"""The composition of ``image_archive.dandelion``, described in Python: the same graph."""

from __future__ import annotations

from dandelion.dataflow.dsl import (
    Returned,
    SetLike,
    composition,
    each,
    functions,
    http,
    join,
    optional,
)

classify, notify, lookup, existing, compress, store, report = functions(
    "classify_picture(picture) -> (kept, rejected)",
    "notify_archive(rejected, archive) -> (requests)",
    "lookup_entries(pictures, archive) -> (requests)",
    "existing_entry(headers, body) -> (archived)",
    "compress_versions(picture, archived) -> (entry, outcome)",
    "store_entries(entries, archive) -> (requests)",
    "report_pictures(rejected, outcomes, replies) -> (report)",
)


@composition
def image_archive(pictures: SetLike) -> Returned:
    """Archive pictures that are worth it, each together with its earlier versions."""
    sorted_ = classify(picture=each(pictures))
    http(requests=each(notify(rejected=sorted_.rejected)))

    answers = http(requests=each(lookup(pictures=sorted_.kept)))
    archived = existing(join(headers=answers.headers).inner(body=answers.bodies))

    made = compress(join(picture=sorted_.kept).left(archived=optional(archived)))
    stored = http(requests=each(store(entries=made.entry)))
    return {
        "report": report(
            rejected=optional(sorted_.rejected),
            outcomes=optional(made.outcome),
            replies=optional(stored.headers),
        )
    }
