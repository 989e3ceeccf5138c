"""A server in this process: what `InProcessPubSub` hubs share, and each hub's way to it.

It lives in memory and answers at once; two hubs on one server are to each other what two processes on one Redis are.
Not guaranteed: anything beyond the life of the object. It belongs to one event loop and takes no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from streamhold._backends.inprocess import commands, steps
from streamhold._backends.inprocess.keyspace import Clock, Keyspace, Refused, steady_clock
from streamhold.errors import BackendError, ConfigError, HubClosed, WrongKeyType

if TYPE_CHECKING:
    from streamhold._backends.redis.command import Arg, Prepared, Reply
    from streamhold._backends.redis.scripts import Script

__all__ = ["InProcessClient", "InProcessReader", "InProcessServer"]


class InProcessServer:
    """Topics, groups and leases in memory; give the same one to several hubs to let them share these."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        """Make an empty server.

        Args:
            clock: seconds since 1970, by which topics and leases expire and deliveries grow old. By default the time
                of day at this moment, counted on by the monotonic clock.

        Raises:
            ConfigError: the clock is not callable.
        """
        if clock is not None and not callable(clock):
            raise ConfigError("clock", clock, "must be a function that returns seconds")
        self._space = Keyspace(clock or steady_clock())
        self._blocked: dict[int, anyio.Event] = {}
        self._readers = 0

    def __repr__(self) -> str:
        return f"<InProcessServer at {id(self):#x}>"


class InProcessClient:
    """One hub's way to the server; takes what a client of Redis takes."""

    def __init__(self, server: InProcessServer) -> None:
        self.timeout = 10.0
        """Nothing takes any time here; what is above wants to know."""
        self.may_unblock = True
        self._server = server
        self._readers: set[InProcessReader] = set()
        self._closed = False

    async def execute(self, *args: Arg, timeout: float | None = None, idempotent: bool = False) -> Reply:
        """Run one command.

        Raises:
            BackendError: it was refused.
            HubClosed: after `aclose`.
        """
        await self._turn(args[0])
        words = _words(args)
        if words[:2] == [b"CLIENT", b"UNBLOCK"]:
            return self._unblock(int(words[2]))
        return _run(self._server, words)

    async def execute_prepared(
        self, prepared: Prepared, last: bytes, *, timeout: float | None = None, idempotent: bool = False
    ) -> Reply:
        """Run a prepared command, or several in one step, with its last argument.

        Raises:
            BackendError: it was refused.
            HubClosed: after `aclose`.
        """
        await self._turn(prepared.args[0])
        replies = [_run(self._server, [*_words(prepared.args), last])]
        replies += [_run(self._server, _words(command)) for command in prepared.then]
        return replies if prepared.then else replies[0]

    async def run_script(
        self,
        script: Script,
        keys: Sequence[Arg],
        args: Sequence[Arg] = (),
        *,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> Reply:
        """Run the step of this name.

        Raises:
            BackendError: it was refused.
            HubClosed: after `aclose`.
        """
        await self._turn(script.name)
        try:
            return steps.run(self._server._space, script.name, _words(keys), _words(args))
        except Refused as refusal:
            raise _error(script.name, refusal) from None

    async def open_reader(self, name: str) -> InProcessReader:
        """A way for calls that wait.

        Raises:
            HubClosed: after `aclose`.
        """
        if self._closed:
            raise HubClosed("open_reader")
        self._server._readers += 1
        reader = InProcessReader(self._server, self._server._readers, self._readers.discard)
        self._readers.add(reader)
        return reader

    async def aclose(self) -> None:
        """End this way to the server, and all that wait. Idempotent."""
        self._closed = True
        for reader in list(self._readers):
            await reader.aclose()

    async def _turn(self, call: Arg) -> None:
        """Let others run, as a round trip would."""
        await anyio.lowlevel.checkpoint()
        if self._closed:
            raise HubClosed(_words([call])[0].decode())

    def _unblock(self, number: int) -> int:
        blocked = self._server._blocked.get(number)
        if blocked is None:
            return 0
        blocked.set()
        return 1


class InProcessReader:
    """Waits for entries, one call at a time."""

    def __init__(
        self, server: InProcessServer, connection_id: int, on_close: Callable[[InProcessReader], None]
    ) -> None:
        self.connection_id = connection_id
        """What ends a call that waits names this number."""
        self._server = server
        self._on_close = on_close
        self._closed = False
        self._waiting: anyio.Event | None = None

    async def connect(self) -> None:
        """Nothing is to be done.

        Raises:
            HubClosed: after `aclose`.
        """
        self._must_be_open()

    async def execute(self, *args: Arg, block: float) -> Reply:
        """Run one XREADGROUP, waiting `block` seconds at most for something to read.

        Raises:
            BackendError: it was refused.
            HubClosed: after `aclose`.
        """
        await anyio.lowlevel.checkpoint()
        self._must_be_open()
        words = _words(args)
        reply = _run(self._server, words)
        if reply is not None or not block:
            return reply
        await self._wait(words, block)
        self._must_be_open()
        return _run(self._server, words)

    async def aclose(self) -> None:
        """End; a call that waits fails. Idempotent."""
        self._closed = True
        self._on_close(self)
        if self._waiting is not None:
            self._waiting.set()

    async def _wait(self, words: Sequence[bytes], block: float) -> None:
        """Wait until one of the streams changes, the time is over, or somebody ends it."""
        named = words[words.index(b"STREAMS", 4) + 1 :]  # not the group or the consumer of this name
        keys = named[: len(named) // 2]
        event = self._waiting = self._server._blocked[self.connection_id] = anyio.Event()
        self._server._space.wait_for(keys, event)
        try:
            with anyio.move_on_after(block):
                await event.wait()
        finally:
            self._server._space.wait_no_more(keys, event)
            del self._server._blocked[self.connection_id]
            self._waiting = None

    def _must_be_open(self) -> None:
        if self._closed:
            raise HubClosed("reading")


def _run(server: InProcessServer, words: Sequence[bytes]) -> Reply:
    try:
        return commands.run(server._space, words)
    except Refused as refusal:
        raise _error(words[0].decode(), refusal) from None


def _error(call: str, refusal: Refused) -> BackendError:
    kind = WrongKeyType if refusal.code == "WRONGTYPE" else BackendError
    return kind(f"{call}: {refusal}", server="in this process", code=refusal.code)


def _words(args: Sequence[Arg]) -> list[bytes]:
    return [word if isinstance(word, bytes) else str(word).encode() for word in args]
