"""A TCP proxy that misbehaves on demand: between a client and a real server, for tests of what a network does.

It runs in a thread with an event loop of its own, so it works the same for async and plain tests and goes on while the
test's loop is busy. Each call has taken effect when it returns. Bytes that were swallowed are gone: connections that
lost some are cut when the proxy goes back to passing everything, as no real TCP stream goes on with a hole in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from streamhold_dev import ports

T = TypeVar("T")
Direction = Literal["both", "requests", "replies"]
_CHUNK = 65_536


@dataclass(slots=True)
class _Rules:
    request_delay: float = 0.0
    reply_delay: float = 0.0
    swallow_requests: bool = False
    swallow_replies: bool = False
    drop_reply_to: bytes | None = None


@dataclass(eq=False, slots=True)
class _Link:
    """One client connection and its counterpart to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    lost_bytes: bool = False
    doomed: bool = False
    """The next reply is not passed on; the connection is cut instead."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def cut(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class Proxy:
    """Pass bytes between clients and a local server, until told otherwise."""

    def __init__(self, target_port: int, *, target_host: str = ports.HOST) -> None:
        self._target = (target_host, target_port)
        self._rules = _Rules()
        self._links: set[_Link] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.host = ports.HOST
        self.port = ports.free_port()
        self.accepted = 0
        """Connections accepted since the start."""

    # ---- running it ----

    def start(self) -> Self:
        """Start to listen."""
        self._thread.start()
        self._do(self._listen())
        return self

    def stop(self) -> None:
        """Cut everything and stop listening."""
        if not self._thread.is_alive():
            return
        self._do(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- what it can do to a connection ----

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._links)

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Hold everything back this long, in order; 0 ends it. "both" delays each way."""
        if direction in ("both", "requests"):
            self._rules.request_delay = seconds
        if direction in ("both", "replies"):
            self._rules.reply_delay = seconds

    def swallow_replies(self) -> None:
        """Pass requests on and lose what the server says: a write happens and nobody hears of it."""
        self._rules.swallow_replies = True

    def swallow_requests(self) -> None:
        """Lose what the clients say: a connection that is open and dead."""
        self._rules.swallow_requests = True

    def drop_reply_to(self, request: bytes) -> None:
        """Pass on the next request that contains these bytes, lose its reply and cut that connection, once."""
        self._rules.drop_reply_to = request

    def cut(self) -> None:
        """Reset all connections that are open now; new ones are accepted."""
        self._do(self._cut(list(self._links)))

    def refuse(self) -> None:
        """Reset all connections and refuse new ones, as a server that is down does."""
        self._do(self._refuse())

    def pass_through(self) -> None:
        """Forget all of the above; listens on the same port again after `refuse`."""
        self._rules = _Rules()
        self._do(self._heal())

    # ---- inside: everything below runs in the proxy's own loop ----

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, self.host, self.port)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._cut(list(self._links))

    async def _heal(self) -> None:
        await self._cut([link for link in self._links if link.lost_bytes])
        await self._listen()

    async def _shut_down(self) -> None:
        await self._refuse()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _cut(self, links: list[_Link]) -> None:
        for link in links:
            link.cut()
            self._links.discard(link)
        tasks = [task for link in links for task in link.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:  # the server is down: the client sees its connection end, as it would without us
            writer.transport.abort()
            return
        for one in (writer, to_server):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(writer, to_server)
        self._links.add(link)
        link.tasks = [
            asyncio.create_task(self._pump(link, reader, to_server, requests=True)),
            asyncio.create_task(self._pump(link, from_server, writer, requests=False)),
        ]
        try:
            await asyncio.wait(link.tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            link.cut()
            await asyncio.wait(link.tasks)
            self._links.discard(link)

    async def _pump(
        self, link: _Link, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, requests: bool
    ) -> None:
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(self._send(link, due, target, requests=requests))
        link.tasks.append(sender)
        try:
            # A reset connection ends the pump like an orderly end does.
            with contextlib.suppress(OSError):
                while chunk := await source.read(_CHUNK):
                    delay = self._rules.request_delay if requests else self._rules.reply_delay
                    due.put_nowait((self._loop.time() + delay, chunk))
            due.put_nowait((0.0, b""))
            await sender
        finally:
            sender.cancel()

    async def _send(
        self, link: _Link, due: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter, *, requests: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                when, chunk = await due.get()
                if not chunk:
                    return
                await asyncio.sleep(max(0.0, when - self._loop.time()))
                if self._passes(link, chunk, requests=requests):
                    target.write(chunk)
                    await target.drain()

    def _passes(self, link: _Link, chunk: bytes, *, requests: bool) -> bool:
        rules = self._rules
        if requests and rules.drop_reply_to is not None and rules.drop_reply_to in chunk:
            rules.drop_reply_to = None
            link.doomed = True
        elif not requests and link.doomed:
            link.cut()
            return False
        if rules.swallow_requests if requests else rules.swallow_replies:
            link.lost_bytes = True
            return False
        return True
