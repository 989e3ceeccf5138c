"""Actions as commands of Redis, and their replies as results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from streamhold.keys import OWNERS_KEY, companion, glob_escape
from streamhold_operator.adapters import redis_refusals as refusals
from streamhold_operator.adapters import redis_replies as replies
from streamhold_operator.adapters.redis_wire import Command, Reply, ReplyError, Wire
from streamhold_operator.domain.actions import (
    Action,
    CreateGroup,
    DeleteStream,
    DeleteStreamFamily,
    DeleteUser,
    RegisterClaim,
    RemoveClaim,
    SetUser,
)
from streamhold_operator.domain.connection import Endpoint
from streamhold_operator.domain.outcome import Refusal

__all__ = ["Result", "carry_out"]

_LUA = files("streamhold_operator.adapters") / "lua"
_CREATE_GROUP = (_LUA / "create_group.lua").read_text()
_DELETE_STREAM = (_LUA / "delete_stream.lua").read_text()
_SCAN_COUNT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one action."""

    action: Action
    failure: Refusal | None = None
    warning: str | None = None
    """It was done, but a user must hear of something (not kept over a restart, for one)."""


async def carry_out(wire: Wire, actions: Sequence[Action]) -> list[Result]:
    """Do these actions: most in one pipeline, in order; deletions of users and families look before they act.

    Raises:
        Refusal: the server could not be reached, or answers nobody.
    """
    failures: dict[int, Refusal | None] = {}
    plain = [(at, _command(action)) for at, action in enumerate(actions)]
    sent = [(at, command) for at, command in plain if command is not None]
    for (at, _), reply in zip(sent, await wire.run([command for _, command in sent]), strict=True):
        failures[at] = _failure(wire.endpoint, actions[at], reply)
    for at, command in plain:
        action = actions[at]
        if command is None:
            try:
                failures[at] = await _look_and_act(wire, action)
            except Refusal as refusal:
                failures[at] = refusal
    return [Result(action=action, failure=failures[at]) for at, action in enumerate(actions)]


def _command(action: Action) -> Command | None:
    """Return the one command that does it; None when it takes more."""
    match action:
        case RegisterClaim(record):
            return ("HSET", OWNERS_KEY, record.field, record.value())
        case RemoveClaim(field):
            return ("HDEL", OWNERS_KEY, field)
        case CreateGroup(key=key, group=group, start=start, idle_ttl_ms=ttl) if ttl > 0:
            return ("EVAL", _CREATE_GROUP, 1, key, group, start, ttl)
        case CreateGroup(key=key, group=group, start=start):
            return ("XGROUP", "CREATE", key, group, start, "MKSTREAM")
        case DeleteStream(key=key, companions=companions):
            return _delete_stream(key, companions)
        case SetUser(username=username, rule=rule):
            return ("ACL", "SETUSER", username, *rule.tokens())
        case DeleteStreamFamily() | DeleteUser():
            return None


def _delete_stream(key: str, companions: Sequence[str]) -> Command:
    return ("EVAL", _DELETE_STREAM, 1 + len(companions), key, *companions)


def _doing(action: Action) -> str:
    match action:
        case RegisterClaim() | RemoveClaim():
            return f"HSET or HDEL on {OWNERS_KEY}"
        case CreateGroup(key=key, group=group):
            return f"XGROUP CREATE {group} on {key}"
        case DeleteStream(key=key):
            return f"DEL {key}"
        case DeleteStreamFamily(key_prefix=key_prefix):
            return f"DEL {key_prefix}*"
        case SetUser(username=username):
            return f"ACL SETUSER {username}"
        case DeleteUser(username=username):
            return f"ACL DELUSER {username}"


def _failure(endpoint: Endpoint, action: Action, reply: Reply) -> Refusal | None:
    if not isinstance(reply, ReplyError) or reply.code == "BUSYGROUP":  # somebody made the group first: as well
        return None
    return refusals.refused(endpoint, reply, _doing(action))


async def _look_and_act(wire: Wire, action: Action) -> Refusal | None:
    match action:
        case DeleteUser(username=username, marker=marker):
            return await _delete_user(wire, action, username, marker)
        case DeleteStreamFamily():
            return await _delete_family(wire, action)
        case _:
            raise TypeError(f"{action} is done by one command")


async def _delete_user(wire: Wire, action: Action, username: str, marker: str) -> Refusal | None:
    (found,) = await wire.run([("ACL", "GETUSER", username)])
    if isinstance(found, ReplyError):
        return _failure(wire.endpoint, action, found)
    rule = replies.user_rule(found)
    if rule is None or not rule.carries(marker):
        return None
    (reply,) = await wire.run([("ACL", "DELUSER", username)])
    return _failure(wire.endpoint, action, reply)


async def _delete_family(wire: Wire, action: DeleteStreamFamily) -> Refusal | None:
    pattern = f"{glob_escape(action.key_prefix)}*"
    cursor: int | str = 0
    while True:
        (reply,) = await wire.run([("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, "TYPE", "stream")])
        if isinstance(reply, ReplyError):
            return _failure(wire.endpoint, action, reply)
        cursor, keys = reply
        deletions = [_delete_stream(key, _companions(action.prefix, key)) for key in keys]
        for answer in await wire.run(deletions):
            failure = _failure(wire.endpoint, action, answer)
            if failure is not None:
                return failure
        if cursor == "0":
            return None


def _companions(prefix: str, key: str) -> tuple[str, str]:
    return companion(prefix, "dead", key), companion(prefix, "delayed", key)
