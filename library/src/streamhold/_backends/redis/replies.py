"""What the server's error replies and a lost connection mean for a caller: the one place that reads error texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from streamhold._backends.redis.command import Arg, ReplyError
from streamhold.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    OutcomeUnknown,
    PermissionRefused,
    ServerFull,
    WrongKeyType,
)

__all__ = [
    "code_of",
    "describe",
    "error_from_handshake",
    "error_from_reply",
    "not_executed",
    "outcome_unknown",
    "unavailable",
]

# The server answers with these instead of executing: trying again later cannot do anything twice.
_NOT_EXECUTED = frozenset({"LOADING", "READONLY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "BUSY"})
# Redis 6.2 wraps the error of a command inside a script:
# "ERR Error running script (call to f_…): @user_script:3: WRONGTYPE Operation …"; from 7.0 on it comes as it is.
_IN_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]{2,}) ")
# Whatever is denied to a script comes as ERR: the first text from 6.2, the second from 7.0 on.
_SCRIPT_WITHOUT_RIGHTS = ("The user executing the script can't", "ACL failure in script")
_KEY_POSITION = {"XGROUP": 2, "XINFO": 2, "OBJECT": 2, "MEMORY": 2}
_WITHOUT_KEY = frozenset(
    {"AUTH", "SELECT", "PING", "CLIENT", "SCRIPT", "INFO", "HELLO", "TIME", "WAIT", "ACL", "CONFIG"}
)


def code_of(error: ReplyError) -> str:
    """The error's code, also of one that an older server wrapped because it happened in a script."""
    if error.code == "ERR":
        wrapped = _IN_SCRIPT.search(error.message)
        if wrapped is not None:
            return wrapped[1]
        if any(text in error.message for text in _SCRIPT_WITHOUT_RIGHTS):
            return "NOPERM"
    return error.code


def not_executed(error: ReplyError) -> bool:
    """Whether the server did nothing and may do it later."""
    return code_of(error) in _NOT_EXECUTED


def describe(args: Sequence[Arg]) -> str:
    """The command and its keys, for messages: never its other arguments, which may be anybody's data."""
    words = [_text(word) for word in args]
    name = words[0].upper() if words else ""
    keys = [f"{key!r}" for key in _keys(name, words)]
    if name in _KEY_POSITION and len(words) > 1:
        name = f"{name} {words[1].upper()}"
    return f"{name} {', '.join(keys)}" if keys else name


def _keys(name: str, words: Sequence[str]) -> Sequence[str]:
    if name in _WITHOUT_KEY:
        return ()
    if name in {"EVAL", "EVALSHA"}:
        count = int(words[2]) if len(words) > 2 and words[2].isdecimal() else 0
        return words[3 : 3 + count]
    if name in {"XREADGROUP", "XREAD"}:
        upper = [word.upper() for word in words]
        if "STREAMS" not in upper:
            return ()
        rest = words[upper.index("STREAMS") + 1 :]
        return rest[: len(rest) // 2]
    at = _KEY_POSITION.get(name, 1)
    return words[at : at + 1]


def _text(word: Arg) -> str:
    return word.decode(errors="backslashreplace") if isinstance(word, bytes) else str(word)


def error_from_reply(error: ReplyError, command: str, server: str) -> BackendError:
    """The error to raise for an error reply.

    Args:
        error: the server's answer.
        command: what was asked, from `describe`.
        server: the server's label, for the message.
    """
    code = code_of(error)
    text = error.message
    if code in {"NOAUTH", "WRONGPASS"}:
        return AuthenticationFailed(
            f"{command}: user name or password refused ({text}); check the credentials", server=server, code=code
        )
    if code == "NOPERM":
        return PermissionRefused(
            f"{command}: the user's ACL does not allow it ({text}); grant the command on these keys",
            server=server,
            code=code,
        )
    if code == "WRONGTYPE":
        return WrongKeyType(
            f"{command}: the key holds another type ({text}); use another name or remove what is there",
            server=server,
            code=code,
        )
    if code == "OOM":
        return ServerFull(
            f"{command}: the server has no memory for it ({text}); raise maxmemory or trim more",
            server=server,
            code=code,
        )
    if code in _NOT_EXECUTED:
        return BackendUnavailable(f"{command}: the server does not serve it now ({text})", server=server, code=code)
    return BackendError(f"{command}: {text}", server=server, code=code)


def unavailable(command: str, server: str, why: object) -> BackendUnavailable:
    """The error for a command that certainly was not executed."""
    return BackendUnavailable(f"{command}: not executed, {why}; is the server up and reachable?", server=server)


def outcome_unknown(command: str, server: str, why: object) -> OutcomeUnknown:
    """The error for a command that left and was not answered."""
    return OutcomeUnknown(f"{command}: it may or may not have been executed, {why}", server=server)


def error_from_handshake(error: ReplyError, server: str) -> BackendError:
    """The error for a server that refused the connection's first commands (AUTH, SELECT)."""
    text = error.message
    if "AUTH" in error.code or error.code == "WRONGPASS" or "AUTH" in text or "password" in text:
        return AuthenticationFailed(
            f"logging in: user name or password refused ({text}); check the credentials", server=server, code=error.code
        )
    return error_from_reply(error, "connecting", server)
