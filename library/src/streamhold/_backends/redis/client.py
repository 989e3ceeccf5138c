"""Commands to one Redis server, with deadlines and a retry policy.

All commands of a client share one link (`link.py`); commands that block at the server get a `Reader`, a link of its
own.

What is retried, within the deadline: a command that certainly was not executed, because it never left or because the
server answered that it does not serve now (LOADING, READONLY, …); and, if the caller says that it is idempotent, one
whose reply was lost. Any other command whose reply was lost raises `OutcomeUnknown`: it may have been executed once,
never twice.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

import anyio

from streamhold._backends.redis import replies, target
from streamhold._backends.redis.command import Arg, DeadlinePassed, LinkLost, NotAtomic, Prepared, Reply, ReplyError
from streamhold._backends.redis.line import Line, LineClosed, Refused, Unreachable
from streamhold._backends.redis.link import Link
from streamhold._backends.redis.scripts import Script
from streamhold._backends.redis.target import Target
from streamhold._core.backoff import Backoff
from streamhold.errors import ConfigError, HubClosed, StreamholdError

if TYPE_CHECKING:
    from streamhold._binding import Binding

__all__ = ["Arg", "Prepared", "Reader", "RedisClient", "Reply", "Script"]

DEFAULT_TIMEOUT = 10.0
"""Seconds that a call may take, retries and reconnects included, unless it says otherwise."""
# A reader's deadline is `block` plus this: what a healthy server may take on top of the time it was told to wait.
_READ_ALLOWANCE = 5.0
# A link that is silent for half the timeout counts as dead, so that what may be tried again still can be; but however
# short the timeout, a server that pauses for a moment keeps its connection.
_SHORTEST_SILENCE = 1.0

_Submit: TypeAlias = "Callable[[Link, float], asyncio.Future[Any]]"
_FAILURES = (ReplyError, LinkLost, DeadlinePassed, NotAtomic)
_Failure: TypeAlias = ReplyError | LinkLost | DeadlinePassed | NotAtomic
# The server became a replica: a new connection may lead to the one that took over.
_SERVED_ELSEWHERE = frozenset({"READONLY", "MASTERDOWN"})


class _Caller:
    """Sends commands over a line: the policy that commands and blocking reads share."""

    def __init__(self, line: Line, server_label: str) -> None:
        self.server_label = server_label
        self._line = line
        self._backoff = Backoff(first=0.02, limit=1.0)
        self._random = Random()

    async def _persist(
        self,
        submit: _Submit,
        args: tuple[Arg, ...],
        deadline: float,
        idempotent: bool,
        failure: _Failure | None = None,
    ) -> Reply:
        """Try until it is answered, must not be tried again, or the deadline has passed.

        Args:
            submit: puts the command on a link.
            args: the command, for messages.
            failure: what became of a try that was already made.
        """
        failures, maybe_executed, link = 0, False, self._line.link
        while True:
            if failure is not None:
                maybe_executed |= isinstance(failure, LinkLost | DeadlinePassed) and failure.sent
                if not self._may_retry(failure, idempotent):
                    self._give_up(failure, args, maybe_executed)
                failures += 1
                delay = self._backoff.delay(failures, self._random.random())
                if asyncio.get_running_loop().time() + delay >= deadline:
                    self._give_up(failure, args, maybe_executed)
                if isinstance(failure, ReplyError) and link is not None:
                    if replies.code_of(failure) in _SERVED_ELSEWHERE:
                        self._line.retire(link, failure)
                    await anyio.sleep(delay)
                elif failures > 1:
                    await anyio.sleep(delay)
            link = await self._link(deadline, args, maybe_executed)
            try:
                if link.full:
                    await self._room(link, deadline)
                return await submit(link, deadline)
            except _FAILURES as exc:
                failure = exc

    async def _link(self, deadline: float, args: Sequence[Arg], maybe_executed: bool) -> Link:
        link = self._line.link
        if link is not None:
            return link
        command = replies.describe(args)
        try:
            return await self._line.ready(deadline)
        except Unreachable as exc:
            cause = exc.__cause__
            why = "no connection within the deadline" + (f" ({cause})" if cause is not None else "")
            raised = replies.outcome_unknown if maybe_executed else replies.unavailable
            raise raised(command, self.server_label, why) from cause
        except Refused as exc:
            cause = exc.__cause__
            if isinstance(cause, ReplyError):
                raise replies.error_from_handshake(cause, self.server_label) from cause
            raise replies.unavailable(command, self.server_label, f"connecting failed: {cause}") from cause
        except LineClosed:
            raise HubClosed(command) from None

    @staticmethod
    async def _room(link: Link, deadline: float) -> None:
        with anyio.move_on_after(max(0.0, deadline - asyncio.get_running_loop().time())):
            await link.room()
            return
        raise DeadlinePassed(sent=False)

    @staticmethod
    def _may_retry(failure: _Failure, idempotent: bool) -> bool:
        if isinstance(failure, ReplyError):
            return replies.not_executed(failure)
        return isinstance(failure, LinkLost) and (idempotent or not failure.sent)

    def _give_up(self, failure: _Failure, args: Sequence[Arg], maybe_executed: bool) -> NoReturn:
        command = replies.describe(args)
        error: StreamholdError
        if isinstance(failure, ReplyError):
            if maybe_executed and replies.not_executed(failure):
                error = replies.outcome_unknown(command, self.server_label, "a reply was lost before: " + str(failure))
            else:
                error = replies.error_from_reply(failure, command, self.server_label)
        elif isinstance(failure, NotAtomic):
            why = f"the server refused MULTI ({failure.refusal}) and ran the commands after it"
            error = replies.outcome_unknown(command, self.server_label, why)
        elif maybe_executed:
            error = replies.outcome_unknown(command, self.server_label, failure)
        elif self._line.closed:
            error = HubClosed(command)
        else:
            error = replies.unavailable(command, self.server_label, failure)
        raise error from failure


class RedisClient(_Caller):
    """One server, one shared link for commands, and a link per reader. Nothing is opened before the first call."""

    server_label: str
    """host:port/database, for messages; never credentials."""
    may_unblock: bool
    """Whether CLIENT UNBLOCK is worth a try: it reaches other clients' connections too, so users may lack it."""

    def __init__(self, where: Target, *, timeout: float = DEFAULT_TIMEOUT, role: str = "commands") -> None:
        """Describe the client.

        Args:
            where: the server and who we are there.
            timeout: seconds that a call may take, retries and reconnects included, unless it says otherwise.
            role: what its connections are called in CLIENT LIST: `streamhold-<role>-<pid>`.

        Raises:
            ConfigError: the timeout is not a positive number.
        """
        _check_timeout("timeout", timeout)
        self.timeout = timeout
        self.may_unblock = True
        self._where = where
        self._readers: set[Reader] = set()
        line = Line(
            where.endpoint,
            where.credentials,
            name=_connection_name(role),
            connect_timeout=min(where.connect_timeout, timeout),
            silence_limit=max(timeout / 2, _SHORTEST_SILENCE),
        )
        super().__init__(line, str(where.endpoint))

    @classmethod
    def from_url(cls, url: str, *, timeout: float = DEFAULT_TIMEOUT, options: Mapping[str, Any] | None = None) -> Self:
        """A client for a `redis://`, `rediss://` or `unix://` URL; `options` are those of redis-py's client.

        Raises:
            ConfigError: the URL or an option is not usable.
        """
        return cls(target.from_url(url, options), timeout=timeout)

    @classmethod
    def from_binding(cls, binding: Binding, *, timeout: float = DEFAULT_TIMEOUT) -> Self:
        """A client for a mounted binding; user name and password are read again at each connect.

        Raises:
            ConfigError: the binding's connection is not usable.
        """
        client = cls(target.from_binding(binding), timeout=timeout)
        client.may_unblock = False  # never granted by the operator: a try would be a denial in the ACL log
        return client

    @classmethod
    def from_redis_py(cls, client: object, *, timeout: float = DEFAULT_TIMEOUT) -> Self:
        """A client with the settings of a redis-py client; none of that client's connections is used.

        Raises:
            ConfigError: it is no client of a standalone server.
        """
        return cls(target.from_redis_py(client), timeout=timeout)

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._line.closed

    def _deadline(self, timeout: float | None) -> float:
        link = self._line.link
        # Up to Python 3.11, finding the running loop makes a system call each time.
        now = link.time() if link is not None else asyncio.get_running_loop().time()
        return now + (self.timeout if timeout is None else timeout)

    async def execute(self, *args: Arg, timeout: float | None = None, idempotent: bool = False) -> Reply:
        """Run one command.

        Args:
            args: the command and its arguments.
            timeout: seconds for the call; None takes the client's.
            idempotent: running it twice does no harm, so a lost reply is followed by another try.

        Raises:
            BackendUnavailable: certainly not executed within the deadline.
            OutcomeUnknown: sent, but no reply.
            BackendError: the server refused it; the class says why (AuthenticationFailed, PermissionRefused,
                WrongKeyType, ServerFull).
            HubClosed: after `aclose`.
        """
        deadline = self._deadline(timeout)
        link, failure = self._line.link, None
        if link is not None and not link.full:
            try:
                return await link.submit(args, deadline)
            except _FAILURES as exc:
                failure = exc
        return await self._persist(lambda link, by: link.submit(args, by), args, deadline, idempotent, failure)

    async def execute_prepared(
        self, prepared: Prepared, last: bytes, *, timeout: float | None = None, idempotent: bool = False
    ) -> Reply:
        """Run a prepared command, or transaction, with its last argument; a transaction answers with a list.

        Raises:
            BackendError: as `execute` and `transaction`.
        """
        deadline = self._deadline(timeout)
        link, failure = self._line.link, None
        data, count = prepared.pack(last), prepared.replies
        if link is not None and not link.full:
            try:
                reply = await link.submit_packed(data, deadline, count)
                return reply if count == 1 else self._checked(itertools.repeat(prepared.args), reply)
            except _FAILURES as exc:
                failure = exc
        reply = await self._persist(
            lambda link, by: link.submit_packed(data, by, count), prepared.args, deadline, idempotent, failure
        )
        return reply if count == 1 else self._checked(itertools.repeat(prepared.args), reply)

    async def transaction(
        self, commands: Sequence[Sequence[Arg]], *, timeout: float | None = None, idempotent: bool = False
    ) -> list[Reply]:
        """Run commands as one atomic step (MULTI … EXEC) and return their replies.

        Raises:
            BackendError: as `execute`; also when one of the commands failed while running, with that error: the others
                were executed then.
        """
        deadline = self._deadline(timeout)
        link, failure = self._line.link, None
        if link is not None and not link.full:
            try:
                return self._checked(commands, await link.submit_transaction(commands, deadline))
            except _FAILURES as exc:
                failure = exc
        shown = tuple(commands[0]) if commands else ("EXEC",)
        done = await self._persist(
            lambda link, by: link.submit_transaction(commands, by), shown, deadline, idempotent, failure
        )
        return self._checked(commands, done)

    def _checked(self, commands: Iterable[Sequence[Arg]], done: list[Reply]) -> list[Reply]:
        """The replies of a transaction; raises what a command of it failed with while it ran."""
        for command, reply in zip(commands, done, strict=False):
            if type(reply) is ReplyError:
                raise replies.error_from_reply(reply, replies.describe(command), self.server_label) from reply
        return done

    async def run_script(
        self,
        script: Script,
        keys: Sequence[Arg],
        args: Sequence[Arg] = (),
        *,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> Reply:
        """Run a script by its digest; a server that does not know it gets the text (it did not run then).

        Raises:
            BackendError: as `execute`.
        """
        deadline = self._deadline(timeout)
        rest = (len(keys), *keys, *args)
        command: tuple[Arg, ...] = ("EVALSHA", script.sha, *rest)
        link, failure = self._line.link, None
        if link is not None and not link.full:
            try:
                return await link.submit(command, deadline)
            except _FAILURES as exc:
                failure = exc
        if not _is_unknown_script(failure):
            digest = command
            try:
                return await self._persist(
                    lambda link, by: link.submit(digest, by), digest, deadline, idempotent, failure
                )
            except StreamholdError as exc:
                if not _is_unknown_script(exc.__cause__):
                    raise
        command = ("EVAL", script.source, *rest)
        return await self._persist(lambda link, by: link.submit(command, by), command, deadline, idempotent)

    async def open_reader(self, name: str) -> Reader:
        """A link of its own for commands that block at the server; it is connected by its first call.

        Args:
            name: what it reads (a group's name), for CLIENT LIST.

        Raises:
            HubClosed: after `aclose`.
        """
        if self._line.closed:
            raise HubClosed("open_reader")
        reader = Reader(self._where, name, self.server_label, self._readers.discard)
        self._readers.add(reader)
        return reader

    async def aclose(self) -> None:
        """Close all links, readers too. Idempotent; ends while the server is down. Unanswered calls fail."""
        lines = [self._line, *(reader._line for reader in self._readers)]
        self._readers.clear()
        for line in lines:
            line.close()  # all of them, also when the caller is cancelled while it waits
        await asyncio.gather(*(line.aclose() for line in lines))


class Reader(_Caller):
    """A link for blocking commands, one at a time; it comes back by itself after a loss.

    Do not cancel a read that takes something from the server (XREADGROUP): its reply would be lost. Let it end, stop
    after it, and keep `block` short.
    """

    def __init__(self, where: Target, name: str, server_label: str, on_close: Callable[[Reader], None]) -> None:
        """Made by `RedisClient.open_reader`."""
        line = Line(
            where.endpoint,
            where.credentials,
            name=_connection_name(f"reader-{name}"),
            connect_timeout=where.connect_timeout,
            silence_limit=None,  # it is silent by design; a read's own deadline tells a dead link
            stretch=_READ_ALLOWANCE,  # a backlog may be large and the network slow: cut off, it would begin anew
        )
        super().__init__(line, server_label)
        self._on_close = on_close

    @property
    def connection_id(self) -> int | None:
        """The server's number for the connection there is now (for CLIENT UNBLOCK); None without one."""
        link = self._line.link
        return link.client_id if link is not None else None

    async def connect(self) -> None:
        """Connect now unless there is a connection; `execute` does so by itself.

        Raises:
            BackendUnavailable: it did not come about within five seconds.
            BackendError: the server refused us.
            HubClosed: after `aclose`.
        """
        if self._line.link is None:
            deadline = asyncio.get_running_loop().time() + _READ_ALLOWANCE
            await self._link(deadline, ("connecting",), maybe_executed=False)

    async def execute(self, *args: Arg, block: float) -> Reply:
        """Run one command that may block at the server.

        Args:
            args: the command; what it says about blocking is the caller's.
            block: the longest it blocks, in seconds; the call ends within `block` plus five seconds, or when its reply
                has arrived if that began in time.

        Raises:
            BackendUnavailable: certainly not executed in time.
            OutcomeUnknown: sent, but no reply: entries it read stay with this consumer at the server.
            BackendError: the server refused it.
            HubClosed: after `aclose`.
        """
        deadline = asyncio.get_running_loop().time() + block + _READ_ALLOWANCE
        return await self._persist(lambda link, by: link.submit(args, by), args, deadline, False)

    async def aclose(self) -> None:
        """Close the link; a read in flight fails. Idempotent."""
        self._on_close(self)
        await self._line.aclose()


def _is_unknown_script(failure: BaseException | None) -> bool:
    return isinstance(failure, ReplyError) and failure.code == "NOSCRIPT"


def _check_timeout(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(option, value, "must be a number of seconds above 0")


def _connection_name(role: str) -> str:
    # CLIENT SETNAME takes printable ASCII without spaces.
    return f"streamhold-{re.sub(r'[^!-~]', '_', role)[:64]}-{os.getpid()}"
