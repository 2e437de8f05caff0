"""Large documents are read and written in a process of their own.

Reading JSON is one call into a library that holds the interpreter's lock until it is done: for 60
MB about a second, with memory of ten times that. A thread does not help, and meanwhile no other
request is answered. So the node leaves large documents to the **converter**: a process that maps
the arena and forks a child for each document. The child sends back where the items lie.

::

    node                                 converter           child
      | job's socket ------------------------>| fork ----------->|
      | Decode(where the body lies) ---------------------------->| decodes
      |<------------------------------------------------------- Need(bytes)
      | Room(where in the arena) ------------------------------->| writes the items' bytes there
      |<------------------------------------- Part, Part, ..., Done, or Failed

A child reads one document and ends, so its memory is gone at once, and a document can neither slow
down nor spoil the next one. It has limits (`process.LIMIT_S`, `process.MEMORY_BYTES`), no files and
no network, and ends when the node drops its socket. What comes back comes in parts of `PART_ITEMS`:
each takes the node well under a millisecond.

Files: `messages` (what both sides say), `process` (converter and child; ``python -m
dandelion.frontend.conversion``), `converter` (the node's side), `costs` (what is worth all this).
"""
