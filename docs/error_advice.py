"""Causes of errors and what to do, for the page that `docs.reference_pages` writes.

For each class of errors: its usual cause, and what to do. The first sentence of a class's
documentation says what it means, so it is not repeated here.
"""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """What a reader of an error wants to know."""

    cause: str
    action: str


ADVICE = {
    # --- the caller's input
    "InvalidInput": Advice(
        "A name, a value or a setting has the wrong form. The message begins with the place.",
        "Correct that place. The end of the message says what is accepted.",
    ),
    "TooLarge": Advice(
        "A request is larger than `body_limit_bytes`, or an item larger than a set allows.",
        "Send less at a time, or raise what the message names: a [setting](settings.md), or a "
        "limit of the function.",
    ),
    "TooMany": Advice(
        "A request has more items than `items_limit`, or a function gave more than it may.",
        "Put more data into each item, or send several requests.",
    ),
    "Problems": Advice("A document has mistakes.", "Correct each place that is listed."),
    "InvalidComposition": Advice(
        "A name is misspelt, sets do not fit, or the graph has a cycle.",
        "Correct each place that is listed. `dandelion check FILE` shows the same without a node.",
    ),
    "UnknownOutput": Advice(
        "A composition in Python uses `application.NAME`, and the function has no such output.",
        "Use one of the names that the message lists.",
    ),
    "InvalidBlueprint": Advice(
        "A kernel, buffer or size is missing or does not fit; or the inputs of this call do not.",
        "Correct each place that is listed; [blueprint.md](blueprint.md) has the rules.",
    ),
    "InvalidFunction": Advice(
        "A source does not compile, imports a module that is not declared, uses a value that "
        "cannot be captured, or a limit is above its cap.",
        "Correct each place that is listed; see "
        "[what is captured](python-functions.md#what-is-captured).",
    ),
    "WrongUsage": Advice(
        "An argument of a command is wrong. The exit code is 2.", "See `dandelion COMMAND --help`."
    ),
    "ProgramFailed": Advice(
        "A Python file that describes functions raised an exception when it was loaded.",
        "Read the traceback in the message. `python FILE` shows the same.",
    ),
    # --- names
    "CatalogError": Advice("A name is not registered, or in use.", "See the kinds below."),
    "Unknown": Advice(
        "The name is misspelt, was never registered, or belongs to another tenant. With a "
        "catalogue in memory, registrations are lost when the node ends. A trace is kept for the "
        "last `keep_traces` invocations that ended.",
        "`dandelion ls` shows what is registered; [registry.md](registry.md) says where.",
    ),
    "Conflict": Advice(
        "A name is used by another kind of record; a record is used by a composition; or another "
        "node has the catalogue open.",
        "Choose another name, remove the user first, or stop the other node.",
    ),
    "CatalogCorrupt": Advice(
        "A disk error, another program, or a newer version of Dandelion wrote the file.",
        "Nothing was changed. Restore a copy; see [registry.md](registry.md#errors).",
    ),
    "CatalogLost": Advice(
        "`catalog.sqlite` was deleted or emptied.",
        "Restore a copy; see [registry.md](registry.md#errors).",
    ),
    "CatalogUnavailable": Advice(
        "The folder is read-only or belongs to another user, or another program has a lock.",
        "Do what the message says, or give another folder with `--catalog sqlite:FOLDER`.",
    ),
    # --- functions
    "FunctionError": Advice("The code or the request of a function is wrong.", "See below."),
    "Raised": Advice(
        "The function raised an exception. The message has its traceback, with the lines of your "
        "file.",
        "See [debugging.md](debugging.md).",
    ),
    "Exited": Advice(
        "The program returned a code other than 0 or called `exit`.",
        "Read what it wrote to standard error, at the end of the message.",
    ),
    "Faulted": Advice(
        "A kernel or native function used an address that is not its own, or broke an assertion. "
        "On a processor, the arrays that a kernel declares may also be larger than the stack.",
        "Check sizes and indices. A kernel needs `if (i < count)` where the grid is larger than "
        "the data. Put large arrays into a buffer.",
    ),
    "Unauthorized": Advice(
        "A function opened a file or a socket, or started a thread or a process.",
        "Give data as inputs or `files=`; make requests with the "
        "[HTTP function](http-function.md); see [permissions](python-functions.md#permissions).",
    ),
    "TimedOut": Advice(
        "The function is slower than its limit, or does not end.",
        "Raise `wall_s` or `cpu_s` in its `limits`, or give it less data: bind a set with `each`.",
    ),
    "OutOfMemory": Advice(
        "The function needs more than `memory_bytes`, 512 MiB by default.",
        "Raise `memory_bytes` in its `limits`, or give it less data: bind a set with `each`.",
    ),
    "BadOutput": Advice(
        "The function returned another set, type or shape than it declares.",
        "Compare the message with `dandelion describe NAME`; see "
        "[results](python-functions.md#arguments-and-results).",
    ),
    "RequestFailed": Advice(
        "A server answered with an error, or an object does not exist.",
        "Check the request of the item that is named.",
    ),
    "RequestRefused": Advice(
        "The request is malformed, or the operator does not allow its target.",
        "Correct it, or allow the target: `--options http.allow=HOST`.",
    ),
    "RequestInterrupted": Advice(
        "A server is down, slow or too busy.",
        "Try again; `attempts` of a composition does that, see [dsl.md](dsl.md).",
    ),
    "NotRecorded": Advice(
        "The code that is replayed asks for other data than the recorded code did.",
        "Record the invocation again; see [replay.md](replay.md).",
    ),
    "SecretMissing": Advice(
        "The secrets file has no such name for the tenant.",
        "Add it and send SIGHUP to the node; see [secrets.md](secrets.md).",
    ),
    # --- invocations
    "ApplicationFailed": Advice(
        "One instance of a function in a composition failed. The end of the message is its error.",
        "Look up the last error of the message, in Python `error.root`. The numbers say which "
        "instance it was. If `error.blame` is `Blame.CAPACITY`, the same may succeed later.",
    ),
    "DeadlineExceeded": Advice(
        "The work takes longer than the deadline, 60 s by default, or waited too long.",
        "`dandelion trace ID` shows what took the time. Give a longer `deadline_s`, or "
        "[submit](asynchronous.md) it.",
    ),
    "Cancelled": Advice(
        "The caller cancelled, its connection closed, or the node is shutting down.",
        "Keep the connection open, or [submit](asynchronous.md) the invocation.",
    ),
    "NotEnded": Advice("The invocation still waits or runs.", "Wait: `dandelion result ID`."),
    "KeyReused": Advice(
        "A client used one idempotency key for two requests.", "Use a new key for each request."
    ),
    "InterruptedTooOften": Advice(
        "The node ended several times while this invocation ran; it may be the cause.",
        "Look at the logs of the node and at its memory before you submit it again.",
    ),
    # --- capacity
    "CapacityError": Advice("Something is full.", "Try again later, or see below."),
    "ContextFull": Advice(
        "Inputs, results and code in flight fill the arena or the share of a tenant.",
        "Send less at once, or raise `arena_bytes`; see [limits.md](limits.md).",
    ),
    "DiskFull": Advice(
        "The disk or a quota is full. Earlier registrations are not affected.",
        "Free some space and register again; see [registry.md](registry.md#errors).",
    ),
    "EnvironmentsFull": Advice(
        "The packages of registered functions take `packages_bytes` together.",
        "Remove functions that are not called, or raise the [setting](settings.md).",
    ),
    "DeviceFull": Advice(
        "Buffers of one call are larger than the memory that the node took on the device.",
        "Use smaller inputs, or give the backend more memory; see [gpu.md](gpu.md).",
    ),
    "Overloaded": Advice(
        "More invocations or calls wait than a limit allows.",
        "Wait and try again. If it lasts, see [tuning.md](tuning.md).",
    ),
    "CopiesFull": Advice(
        "Other nodes of the cluster keep as many copies of asynchronous invocations as "
        "`cluster_copies_number` and `cluster_copies_bytes` allow.",
        "Delete invocations that ended, wait for others, or raise the settings on the voters.",
    ),
    "KeptFull": Advice(
        "Results of asynchronous invocations fill `async_keep_bytes`.",
        "Delete those that have ended: `dandelion cancel ID`.",
    ),
    "Crowded": Advice(
        "All `max_connections` are in use.", "Reuse connections; close those that are idle."
    ),
    "QuotaExceeded": Advice(
        "The inputs of one invocation with its results, or code and constants of one function, are "
        "larger than the quota of the tenant, or than the memory of the node for functions.",
        "Use smaller inputs or a smaller function, or ask the operator; see "
        "[limits.md](limits.md).",
    ),
    # --- the platform
    "BackendUnavailable": Advice(
        "A library, a driver or a device is missing, or the kernel lacks a feature.",
        "`dandelion doctor` prints the commands that install what is missing.",
    ),
    "NoEngine": Advice(
        "The function is for a device that this node does not have, or its backend is not started.",
        "`dandelion ls backends` shows which backends work and why others do not.",
    ),
    "EngineDied": Advice(
        "A process of an engine crashed or was killed, for example because memory ran out.",
        "Try again. If it repeats, look at the logs of the node and of the kernel (`dmesg`).",
    ),
    "NodeLost": Advice(
        "A node of the cluster was killed, stopped or cut off, and no other one took the call.",
        "Try again. `dandelion cluster status` shows which nodes are up.",
    ),
    "PackagesLost": Advice(
        "Something deleted the folder of prepared packages, or a part of it, while the node ran.",
        "Try again: they are prepared once more. If it repeats, find what deletes files in the "
        "folder of the setting `packages_cache`.",
    ),
    "SandboxLost": Advice(
        "A sandbox was killed from outside, or the machine has no memory or processes left.",
        "Try again. If it repeats, look at the limits of the machine (`dmesg`, `ulimit -u`).",
    ),
    "DeviceFault": Advice(
        "The driver or the device failed. The engine is replaced.",
        "Try again. If it repeats, check the device (`nvidia-smi`, `dmesg`).",
    ),
    "InternalError": Advice(
        "A bug of Dandelion.", "Report it with the message and `detail`, which has a traceback."
    ),
    "KeptCorrupt": Advice(
        "`invocations.sqlite` is damaged. The catalogue is not affected.",
        "Follow the message: restore the folder, or give up the invocations that are kept.",
    ),
    # --- HTTP and clients
    "Unreachable": Advice(
        "No node runs at the address, a firewall is between, the URL has the wrong scheme (`http`, "
        "`https`), or the node's certificate is not known.",
        "Start one with `dandelion serve`; check `--url` and `DANDELION_URL`; name the certificate "
        "with `--ca FILE`. The exit code is 3.",
    ),
    "ClientClosed": Advice(
        "A client, or a handle that it gave, is used after `close()` or after its `with` block.",
        "Use it inside the block. Another client gives the handle again: `Client.submitted(id)`.",
    ),
    "RequestError": Advice("The request is not valid HTTP.", "See the message."),
    "NoRoute": Advice("The path is wrong.", "`/docs` on the node lists all routes."),
    "MethodNotAllowed": Advice(
        "The path is right and the method is not.", "Use a method that the message lists."
    ),
    "NoTunnel": Advice("A client takes the node for a proxy.", "Unset `http_proxy`."),
    "ForeignHost": Advice(
        "The node was called by a name that it does not know.",
        "Add the name to the setting `hosts`.",
    ),
    "ForeignOrigin": Advice(
        "A web page of another site calls the node.", "Add the page to `cors_origins`."
    ),
    "Unauthenticated": Advice(
        "The token is missing, misspelt, expired or removed.",
        "Set `DANDELION_TOKEN`; see [tokens](http.md#tokens).",
    ),
    "MissingRight": Advice(
        "The token was made for other work.", "Make one with that right: `dandelion token new`."
    ),
    "RateLimited": Advice(
        "The token has a rate, and it was exceeded.", "Wait as long as the message says."
    ),
    "NotAcceptable": Advice(
        "The header `Accept` excludes every format of the answer.",
        "Accept `application/json` or `application/msgpack`.",
    ),
    "TooCostly": Advice(
        "A document has very many small values.", "Send arrays as MessagePack with binary data."
    ),
    "Stalled": Advice(
        "The client or the network is too slow.",
        "Send faster, or raise `head_timeout_s` or `body_timeout_s`.",
    ),
    "HeadTooLong": Advice("Headers or URL are too long.", "Put data into the body."),
    "UnsupportedMedia": Advice(
        "The header `Content-Type` or `Content-Encoding` names another format.",
        "Send a format that the message lists.",
    ),
    "ShuttingDown": Advice("The node is stopping.", "Try again, or try another node."),
    "Unsupported": Advice(
        "A client of KServe uses a part of the protocol that Dandelion does not have.",
        "See [kserve.md](kserve.md).",
    ),
}
