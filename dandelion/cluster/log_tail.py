"""The commands of the log that a node keeps: those from a place on, which is the *base*.

All before the base have been carried out on the catalogue, which has their effect. Some of them are
kept all the same, since a node that lacks a few commands can be sent these; one that lacks more is
sent the whole catalogue (`snapshots`).
"""

from __future__ import annotations

from dandelion.cluster.ballots import Command

KEPT = 256
KEPT_BYTES = 8 << 20
"""So many commands that are carried out, and of so many bytes, are kept for other nodes."""
CATCH_UP = 64
CATCH_UP_BYTES = 16 << 20
"""So many commands, or of so many bytes, are sent at once to a node that lacks them."""


class LogTail:
    """The kept commands.

    Attributes:
        base: place of the first one that is kept.
        commands: from there on.
    """

    def __init__(self) -> None:
        self.base = 0
        self.commands: list[Command] = []
        self._bytes = 0

    @property
    def length(self) -> int:
        """Number of all commands of the log that are known, also of those that are not kept."""
        return self.base + len(self.commands)

    @property
    def is_long(self) -> bool:
        """Whether twice as much is kept as has to be."""
        return len(self.commands) > 2 * KEPT or self._bytes > 2 * KEPT_BYTES

    def append(self, command: Command) -> None:
        """Add the next command."""
        self.commands.append(command)
        self._bytes += len(command.content)

    def part(self, place: int) -> tuple[Command, ...]:
        """Return some of the commands from a place on; the place must be kept."""
        first = place - self.base
        commands = [self.commands[first]]
        left = CATCH_UP_BYTES - len(commands[0].content)
        for command in self.commands[first + 1 : first + CATCH_UP]:
            left -= len(command.content)
            if left < 0:
                break
            commands.append(command)
        return tuple(commands)

    def shorten(self, carried_out: int) -> bool:
        """Drop what need not be kept; tell whether there was anything.

        Args:
            carried_out: how many commands of the log the catalogue has; later ones are kept.
        """
        count, size = 0, self._bytes
        limit = min(carried_out - self.base, len(self.commands))
        while count < limit and (len(self.commands) - count > KEPT or size > KEPT_BYTES):
            size -= len(self.commands[count].content)
            count += 1
        del self.commands[:count]
        self.base += count
        self._bytes = size
        return count > 0

    def begin_at(self, place: int) -> None:
        """Keep nothing; the next command has this place."""
        self.base = place
        self.commands.clear()
        self._bytes = 0
