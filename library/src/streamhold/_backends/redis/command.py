"""What goes over a link and what comes back: commands on the wire, replies, and the ways in which a reply can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import hiredis

__all__ = [
    "Arg",
    "DeadlinePassed",
    "LinkLost",
    "NotAtomic",
    "Prepared",
    "Reply",
    "ReplyError",
    "pack",
    "pack_transaction",
    "replies_of_transaction",
]

Arg: TypeAlias = str | bytes | int | float
Reply: TypeAlias = Any
"""bytes, int, None, or a list of these (and, inside a list, of `ReplyError`)."""

pack: Callable[[tuple[Arg, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub takes one word
"""A command in wire format."""
MULTI, EXEC = pack(("MULTI",)), pack(("EXEC",))


class ReplyError(Exception):
    """An error reply of the server."""

    code: str
    """Its first word, e.g. `WRONGTYPE`."""
    message: str
    """The whole text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = message.partition(" ")[0]


class NotAtomic(Exception):
    """MULTI was refused but commands after it were taken: they ran one by one."""

    def __init__(self, refusal: ReplyError) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class LinkLost(Exception):
    """The link ended before the reply came."""

    sent: bool
    """False: the command certainly did not leave. True: it may have been executed."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class DeadlinePassed(Exception):
    """The caller's deadline passed before the reply came; the link may be well."""

    sent: bool
    """As `LinkLost.sent`."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("no reply within the deadline" if sent else "could not be sent within the deadline")
        self.sent = sent


def pack_transaction(commands: Iterable[Sequence[Arg]]) -> tuple[bytes, int]:
    """MULTI, the commands, EXEC in wire format, and how many replies they bring."""
    packed = [pack(tuple(command)) for command in commands]
    return b"".join([MULTI, *packed, EXEC]), len(packed) + 2


def replies_of_transaction(collected: Sequence[Reply]) -> list[Reply] | ReplyError | NotAtomic:
    """What the replies to MULTI, to each command, and to EXEC mean: the commands' replies, or why there are none."""
    multi, *queued, executed = collected
    refused = [answer for answer in queued if isinstance(answer, ReplyError)]
    if isinstance(multi, ReplyError):
        return multi if len(refused) == len(queued) else NotAtomic(multi)
    if refused:
        return refused[0]
    done: list[Reply] | ReplyError = executed
    return done


class Prepared:
    """A command, or a transaction, of which all but one argument is fixed: packed once, sent again and again.

    The open argument is the last one of the (first) command. For the per-message path: it costs a third of packing all
    arguments each time.
    """

    __slots__ = ("_head", "_tail", "args", "replies", "then")

    args: tuple[Arg, ...]
    """The fixed arguments of the (first) command, for messages."""
    then: tuple[Sequence[Arg], ...]
    """Further commands of the transaction."""
    replies: int

    def __init__(self, args: Sequence[Arg], *then: Sequence[Arg]) -> None:
        """Fix the arguments.

        Args:
            args: the command without its last argument.
            then: further commands; with any, all are one transaction.
        """
        self.args = tuple(args)
        self.then = then
        whole = pack((*self.args, b""))
        self._head = whole.removesuffix(b"0\r\n\r\n")
        self._tail = b"\r\n"
        self.replies = 1
        if then:
            self._head = MULTI + self._head
            self._tail = b"".join([self._tail, *(pack(tuple(command)) for command in then), EXEC])
            self.replies = len(then) + 3

    def pack(self, last: bytes) -> bytes:
        """The wire format with this last argument."""
        return b"%b%d\r\n%b%b" % (self._head, len(last), last, self._tail)
