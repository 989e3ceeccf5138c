"""The far end of a connection in memory: what a protocol wrote, and the bytes that a server would answer.

For tests that need each write and each byte in their hand. It answers the few commands of which a test can foretell the
reply; everything else is tested on real servers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis


class RecordingTransport(asyncio.Transport):
    """Keeps each write; tells the protocol what a test wants it to hear."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.aborted = False
        self.unwritten = 0
        """Bytes that the far end has not taken yet."""

    def write(self, data: Any) -> None:
        assert not self.closed, "written after close"
        self.writes.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unwritten

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class EchoServer:
    """Answers ECHO, and MULTI … EXEC of it, as a Redis server does (RESP2)."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._queued: list[bytes] | None = None
        self.commands: list[list[bytes]] = []

    def answer(self, data: bytes) -> bytes:
        """The replies to the commands in these bytes."""
        self._reader.feed(data)
        replies = []
        while (command := self._reader.gets()) is not False:
            self.commands.append(command)
            replies.append(self._reply(command))
        return b"".join(replies)

    def _reply(self, command: list[bytes]) -> bytes:
        name = command[0]
        if name == b"MULTI":
            self._queued = []
            return b"+OK\r\n"
        if name == b"EXEC":
            queued, self._queued = self._queued or [], None
            return b"*%d\r\n" % len(queued) + b"".join(queued)
        reply = b"$%d\r\n%b\r\n" % (len(command[1]), command[1]) if name == b"ECHO" else b"-ERR unknown command\r\n"
        if self._queued is not None:
            self._queued.append(reply)
            return b"+QUEUED\r\n"
        return reply
