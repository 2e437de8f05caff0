"""KServe v2 over gRPC, in a frontend process of its own.

The process is one more frontend of the node (`dandelion.frontend_process`): it has the same link,
leases memory in the same way, and is started again when it ends. What it does with tensors is the
code of HTTP (`dandelion.frontend.kserve`).

The server is that of ``grpc.aio``: calls are coroutines on the loop of the link, so a call has a
deadline and is cancelled with its client without threads. Measured with messages as bytes, it takes
as long as the server with threads, at 100 bytes and at 64 MiB. What made it slow for large
messages is the copying of the protobuf library, which `wire` avoids.

A caller is checked before its message is read (`server`): a message of a caller without a token
takes no memory. The size of messages and the number of calls are limited. The memory of the process
is limited as well, so that many large messages at once end this process and not the machine's
memory.

Files: `messages` (protobuf), `wire` (raw contents without copies), `tensors` (requests and
responses), `methods` (what each method does), `server` (checks, errors, streams), `process`.
"""
