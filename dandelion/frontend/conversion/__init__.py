"""Large documents are converted in a separate process.

The JSON library holds the interpreter lock while it decodes: about a second for 60 MB, with ten
times as much memory. A thread does not help; no other request would be served meanwhile. So large
documents are left to the **converter**, a process that maps the arena and forks a child for each
document. The child sends back where the items are.

::

    node                                 converter           child
      | job's socket ------------------------>| fork ----------->|
      | Decode(where the body is) ------------------------------>| decodes
      |<------------------------------------------------------- Need(bytes)
      | Room(where in the arena) ------------------------------->| writes the items' bytes there
      |<------------------------------------- Part, Part, ..., Done, or Failed

A child converts one document and exits. Its memory is freed at once, and a document cannot affect
the next one. It has limits (`process.LIMIT_S`, `process.MEMORY_BYTES`), no files and no network. It
exits when the node closes its socket. Items are sent back in parts of `PART_ITEMS`; the node takes
less than a millisecond for each.

Files: `messages` (the protocol), `process` (converter and child; ``python -m
dandelion.frontend.conversion``), `converter` (the node's side), `costs` (which documents are large
enough).
"""
