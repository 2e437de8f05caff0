"""The listening sockets of several frontends on one port.

Each frontend has a socket of its own, all bound to the same port with SO_REUSEPORT, and the kernel
chooses one for each new connection by a hash of both addresses. What was weighed:

- **One socket that all inherit.** Each new connection wakes every idle process, and the first one
  to wake takes all that wait (`acceptor.BATCH`). When 64 clients connect at once, one frontend gets
  nearly all of them and keeps them, since connections are kept alive.
- **One process that accepts and hands connections on** is fair, but costs the node's loop two
  system calls and a message for each connection.
- **A socket for each** spreads connections evenly without any work. With few connections the hash
  may be uneven.

A socket that its process alone holds would lose the connections in its queue when the process is
killed. Here the node opens all of them and keeps them open: the queue survives, and the process
that takes the place of the killed one finds it. Until then one in N new connections waits. If none
can be started, the socket is closed, and the others get its connections. One that is opened again
then listens only when its process is ready, so a further failure loses none.

A second program that asks for the port must be refused, also where the same user runs it. So the
first socket is bound without SO_REUSEPORT, which is set before the others are bound: the kernel
looks at what is set when the next one is bound.

Source: ``socket(7)``; ``inet_csk_bind_conflict`` in Linux.
"""

from __future__ import annotations

import socket
from typing import Any

from dandelion.frontend.listener import BACKLOG, bind, refused
from dandelion.settings import Settings


def bind_several(host: str, port: int, count: int, settings: Settings) -> list[socket.socket]:
    """Open so many listening sockets on one port.

    Raises:
        InvalidInput: as `bind`.
    """
    first = bind(host, port, settings)
    opened = [first]
    try:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        address = first.getsockname()
        for _ in range(count - 1):
            opened.append(bind_another(first.family, address))
            opened[-1].listen(BACKLOG)
    except OSError as error:
        for one in opened:
            one.close()
        raise refused(host, port, error) from None
    return opened


def bind_another(family: int, address: tuple[Any, ...]) -> socket.socket:
    """Open one more socket on the port of others. It gets no connections before it listens.

    Raises:
        OSError: the system refuses it.
    """
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one
