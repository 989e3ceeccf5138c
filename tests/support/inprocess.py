"""A plain client of an in-process server: redis-py with everything it offers, but no connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import redis.asyncio

from streamhold._backends.inprocess.server import InProcessClient
from streamhold.errors import BackendError

if TYPE_CHECKING:
    from streamhold import InProcessServer

__all__ = ["PlainInProcess"]


class PlainInProcess(redis.asyncio.Redis):
    """Sends to the server in this process, and decodes what it answers."""

    def __init__(self, server: InProcessServer) -> None:
        super().__init__(decode_responses=True, protocol=2)
        self._in_process = InProcessClient(server)
        self._space = server._space

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command and read the reply as redis-py reads one of a server."""
        name = args[0]
        try:
            reply = await self._in_process.execute(*name.split(), *args[1:])
        except BackendError as error:
            raise redis.ResponseError(str(error)) from error
        options.pop("keys", None)
        read = self.response_callbacks.get(name)
        decoded = _decoded(reply)
        return decoded if read is None else read(decoded, **options)

    async def time(self) -> tuple[int, int]:
        """The server's clock: seconds and microseconds."""
        seconds, microseconds = divmod(int(self._space.clock() * 1_000_000), 1_000_000)
        return seconds, microseconds

    async def scan_iter(self, match: Any = None, count: int | None = None, **_: Any) -> AsyncIterator[str]:
        """The keys that begin as the pattern does."""
        for key in list(self._space._values):
            if key.decode().startswith(match.removesuffix("*")):
                yield key.decode()


def _decoded(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode(errors="backslashreplace")
    return [_decoded(one) for one in reply] if isinstance(reply, list) else reply
