"""Frontends in processes of their own: several processes parse HTTP on one port for one node.

A node's event loop is one Python thread, and most of what an HTTP request costs is parsing it and
writing its reply. So with `frontends = N` the HTTP frontend runs in N processes, and the node's
thread only admits invocations and hands results back.

::

    client --HTTP--> frontend process --link--> node --> engines
                          |                       |
                          +------- arena ---------+

**Link.** One stream socket between a frontend and the node (`link`). What is posted in one turn of
a loop leaves as one frame, a length and a MessagePack list of messages (`messages`), so that many
requests cost one system call on each side. Data up to `INLINE_BYTES` travels in the message; larger
data lies in the arena and is named by its place. Nothing is pickled.

**Memory.** The node owns the arena. A frontend **leases** pieces of it: slabs that small bodies are
cut from, ahead of requests, and one piece for each large body. The node makes views of what an
invocation names, and a view keeps its memory, so a frontend may return a lease as soon as the
message that names it is posted. Results stay with the node until the frontend returns their number.
Both kinds of numbers travel in `Release`, many in one message.

**Catalogue.** The node writes the generation of the catalogue and whether it is ready into a page
of the arena (`status`) before it answers a registration. A frontend reads it with each request, so
what was registered through one frontend holds for the next request to any other.

**Death.** When a frontend dies, its invocations are cancelled as the link ends. Its memory is freed
when the last process that maps the arena for it is gone: the frontend, its converter and the
converter's children all inherit the writing end of a pipe, the **lifeline**, and the node waits for
the end of that pipe. When the node dies, the kernel kills its frontends (parent-death signal).

On the node's side: `supervisor` starts, watches and restarts the processes, `node_link` serves one
of them, `queries` and `kept_requests` answer what is not an invocation, `long_answers` what takes
long. In a frontend: `process` is the program, `remote_node` offers
`dandelion.frontend.service.Service` over the link, `leases` has its memory.
"""
