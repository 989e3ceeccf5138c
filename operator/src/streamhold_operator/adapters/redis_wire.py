"""Pipelines over a few redis-py connections: replies come back as values, and every call ends by a deadline.

redis-py's own retries are off. One thing is sent again, once: a pipeline whose *kept* connection turned out to be dead,
as after a restart of the server. All that this operator sends may be done twice.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from streamhold_operator.adapters import redis_refusals as refusals
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.connection import Endpoint
from streamhold_operator.domain.outcome import Refusal

__all__ = ["Command", "Reply", "ReplyError", "Tls", "Wire", "WireSession"]

Command: TypeAlias = tuple[str | int, ...]
Reply: TypeAlias = Any
"""str, int, None, a list of these, or a ReplyError. (No EXEC is ever sent, so no list holds an error.)"""

_CHUNK = 500
"""Commands written at once, so that a large batch fills no buffer."""
_EACH = 0.001
"""Seconds that each command of a pipeline adds to its deadline."""


@dataclass(frozen=True, slots=True)
class ReplyError:
    """An error that the server answered with."""

    code: str
    """Its first word: NOPERM, WRONGTYPE, ERR."""
    text: str
    """The rest."""

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What TLS needs, in PEM."""

    ca: bytes | None = None
    """None: the system's certificates."""
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    """The name in the server's certificate, where it is not the host."""


class _Connection(Connection):
    """A connection whose TLS settings are a context of ours: redis-py's own takes files."""

    def __init__(self, *, context: ssl.SSLContext | None, server_name: str | None, **options: Any) -> None:
        super().__init__(**options)
        self._context, self._server_name = context, server_name

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        if self._context is not None:
            arguments |= {"ssl": self._context, "server_hostname": self._server_name or self.host}
        return arguments


class WireSession:
    """One connection, for commands that belong together (MULTI)."""

    def __init__(self, connection: _Connection, endpoint: Endpoint, *, tls: bool | None = None) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._tls = tls  # None once it has worked

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Send a pipeline and return its replies in order; errors of the server are replies too.

        Raises:
            Refusal: the connection broke, or the server let us in no longer.
        """
        replies: list[Reply] = []
        for start in range(0, len(commands), _CHUNK):
            part = commands[start : start + _CHUNK]
            try:
                await self._connection.send_packed_command(self._connection.pack_commands(part), check_health=False)
                replies += [await self._read() for _ in part]
            except RedisError as exc:
                raise refusals.lost(self._endpoint, exc, tls=self._tls) from exc
        return replies

    async def _read(self) -> Reply:
        try:
            reply: Reply = await self._connection.read_response(disconnect_on_error=False)
        except ResponseError as exc:
            return _reply_error(exc)
        return reply


class Wire:
    """A few connections to one server as one user."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        username: str | None,
        password: str | None,
        database: int,
        tls: Tls | None,
        timeout: float,
        max_connections: int,
    ) -> None:
        self.endpoint = endpoint
        self._username, self._password, self._database = username, password, database
        self._tls, self._timeout = tls, timeout
        self._context: ssl.SSLContext | None = None
        self._idle: list[_Connection] = []
        self._room = anyio.Semaphore(max_connections)
        self._closed = False

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Send a pipeline over one connection and return its replies in order; errors of the server are replies too.

        Raises:
            Refusal: no connection, or no answer in time.
        """
        if not commands:
            return []
        async with self._room, self._bounded(len(commands)):
            while self._idle:
                try:
                    async with self._borrowed(self._idle.pop()) as session:
                        return await session.run(commands)
                except Refusal as refusal:
                    if refusal.reason != Reason.UNREACHABLE:
                        raise
                    await self._drop_idle()  # the others are as old
            async with self._borrowed(await self._opened()) as session:
                return await session.run(commands)

    @asynccontextmanager
    async def session(self, *, login: bool = True) -> AsyncIterator[WireSession]:
        """Open a new connection for commands that belong together; it is closed afterwards.

        Args:
            login: False connects without credentials.

        Raises:
            Refusal: no connection, or no answer in time.
        """
        async with self._room, self._bounded():
            connection = await self._opened(login=login)
            try:
                yield WireSession(connection, self.endpoint)
            finally:
                await _abandon(connection)

    async def aclose(self) -> None:
        """Close all connections; one in use closes when its call ends."""
        self._closed = True
        await self._drop_idle()

    @asynccontextmanager
    async def _bounded(self, commands: int = 1) -> AsyncIterator[None]:
        timeout = self._timeout + commands * _EACH
        try:
            with anyio.fail_after(timeout):
                yield
        except TimeoutError as exc:
            await self._drop_idle()
            raise refusals.timed_out(self.endpoint, timeout, tls=self._tls is not None) from exc

    @asynccontextmanager
    async def _borrowed(self, connection: _Connection) -> AsyncIterator[WireSession]:
        """Use a connection; it is kept only if all its replies were read."""
        try:
            yield WireSession(connection, self.endpoint)
        except BaseException:
            await _abandon(connection)
            raise
        if self._closed:
            await _abandon(connection)
        else:
            self._idle.append(connection)

    async def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await _abandon(connection)

    async def _opened(self, *, login: bool = True) -> _Connection:
        if self._tls is not None and self._context is None:
            self._context = await anyio.to_thread.run_sync(_tls_context, self._tls)
        connection = _Connection(
            context=self._context,
            server_name=self._tls.server_name if self._tls else None,
            host=self.endpoint.host,
            port=self.endpoint.port,
            username=(self._username or None) if login else None,
            password=(self._password or None) if login else None,
            db=0,
            protocol=2,
            driver_info=None,
            decode_responses=True,
            encoding_errors="surrogateescape",
            socket_timeout=None,  # one deadline for all: `_bounded`
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
        )
        tls = self._tls is not None
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            if login:
                await self._prepare(connection)
        except (RedisError, OSError) as exc:
            await _abandon(connection)
            raise refusals.not_connected(self.endpoint, exc, tls=tls) from exc
        except BaseException:
            await _abandon(connection)
            raise
        return connection

    async def _prepare(self, connection: _Connection) -> None:
        session = WireSession(connection, self.endpoint, tls=self._tls is not None)
        commands: list[Command] = [("CLIENT", "SETNAME", "streamhold-operator")]
        if self._database:
            commands.append(("SELECT", self._database))
        replies = await session.run(commands)  # a refused name harms nothing
        if self._database and isinstance(replies[-1], ReplyError):
            raise refusals.no_database(self.endpoint, self._database, replies[-1])


async def _abandon(connection: _Connection) -> None:
    with anyio.CancelScope(shield=True):
        await connection.disconnect(nowait=True)


def _reply_error(exc: ResponseError) -> ReplyError:
    # redis-py cuts the code off the texts it knows.
    if exc.status_code:
        return ReplyError(exc.status_code, str(exc))
    code, _, text = str(exc).partition(" ")
    return ReplyError(code, text)


def _tls_context(tls: Tls) -> ssl.SSLContext:
    """Build the context; reads and writes files, so not in the event loop."""
    if tls.ca is not None and not tls.ca.strip():
        raise refusals.bad_ca(ValueError("empty"))
    try:
        context = ssl.create_default_context(cadata=tls.ca.decode("ascii") if tls.ca is not None else None)
    except (ssl.SSLError, ValueError) as exc:
        raise refusals.bad_ca(exc) from exc
    if tls.cert is None:
        return context
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        cert.write_bytes(tls.cert)
        key.touch(mode=0o600)
        key.write_bytes(tls.key or b"")
        try:
            context.load_cert_chain(cert, key)
        except (ssl.SSLError, ValueError, OSError) as exc:
            raise refusals.bad_client_certificate(exc) from exc
    return context
