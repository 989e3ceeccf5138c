"""The first talk with a server: who it is, what it can do, and whether the admin user may do what is needed.

Rights are tried out where they cannot do harm: inside a MULTI that is discarded. The server checks them when a command
is queued, in all versions and for exactly this user and these keys, and runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamhold.keys import OWNERS_KEY
from streamhold_operator.adapters import redis_refusals as refusals
from streamhold_operator.adapters import redis_replies as replies
from streamhold_operator.adapters.redis_wire import Command, Reply, ReplyError, Wire, WireSession
from streamhold_operator.domain import connection as domain
from streamhold_operator.domain.acl import AclAbilities
from streamhold_operator.domain.connection import ServerFacts
from streamhold_operator.domain.outcome import Refusal

__all__ = ["probe"]


async def probe(wire: Wire, *, password: str | None, acl: bool, sample_prefix: str) -> ServerFacts:
    """Log in and ask what a server is. Writes nothing.

    Args:
        wire: connections to it.
        password: the one that `wire` logs in with.
        acl: whether the admin user has to manage ACL users.
        sample_prefix: a key prefix of the connection, to try rights on.

    Raises:
        Refusal: it cannot be reached, does not let us in, or does not tell.
    """
    try:
        async with wire.session() as session:
            first = await _introduce(wire, session)
            if first.default_user_open and password and first.user == "default":
                raise refusals.auth_failed(
                    wire.endpoint,
                    "The default user takes any password, so the one of the Secret protects nothing",
                    warnings=(domain.open_default_user(wire.endpoint),),
                )
            missing: tuple[str, ...] = ()
            if first.facts.mode == "standalone" and first.facts.role == "master":
                missing = await _missing_rights(wire, session, first.facts, acl=acl, sample_prefix=sample_prefix)
    except Refusal as refusal:
        if refusal.reason == "AuthFailed" and not refusal.warnings and await _open_to_all(wire):
            raise Refusal(
                refusal.reason,
                refusal.message,
                retry_after=refusal.retry_after,
                warnings=(domain.open_default_user(wire.endpoint),),
            ) from refusal
        raise
    facts = first.facts
    return ServerFacts(
        product=facts.product,
        version=facts.version,
        run_id=facts.run_id,
        role=facts.role,
        mode=facts.mode,
        master=facts.master,
        abilities=facts.abilities,
        acl_file=facts.acl_file,
        default_user_open=first.default_user_open,
        missing_rights=tuple(dict.fromkeys((*first.missing, *missing))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Introduction:
    facts: ServerFacts
    user: str
    default_user_open: bool
    missing: tuple[str, ...]


async def _introduce(wire: Wire, session: WireSession) -> _Introduction:
    ping, server, replication, whoami, default, acl_file, setinfo = await session.run(
        [
            ("PING",),
            ("INFO", "server"),
            ("INFO", "replication"),
            ("ACL", "WHOAMI"),
            ("ACL", "GETUSER", "default"),
            ("CONFIG", "GET", "aclfile"),
            ("COMMAND", "INFO", "client|setinfo"),
        ]
    )
    missing: list[str] = []
    for reply, doing in ((ping, "PING"), (server, "INFO"), (replication, "INFO")):
        if isinstance(reply, ReplyError):
            if reply.code == "MASTERDOWN":
                continue  # a replica that lost its master: its role says enough
            if reply.code != "NOPERM":
                raise refusals.refused(wire.endpoint, reply, doing)
            missing.append(doing)
    server_fields = {} if isinstance(server, ReplyError) else replies.info(server)
    return _Introduction(
        facts=_facts(server_fields, replication, default, acl_file, setinfo),
        user="" if isinstance(whoami, ReplyError) else whoami,
        default_user_open=_is_open(default),
        missing=tuple(missing),
    )


def _facts(server: dict[str, str], replication: Reply, default: Reply, acl_file: Reply, setinfo: Reply) -> ServerFacts:
    roles = {} if isinstance(replication, ReplyError) else replies.info(replication)
    valkey = server.get("server_name") == "valkey"
    mode = server.get("server_mode") or server.get("redis_mode") or "standalone"
    master = f"{roles['master_host']}:{roles['master_port']}" if "master_host" in roles else None
    abilities = AclAbilities(
        selectors=isinstance(default, list) and "selectors" in replies.pairs(default),
        client_setinfo=isinstance(setinfo, list) and any(isinstance(entry, list) and entry for entry in setinfo),
    )
    return ServerFacts(
        product="Valkey" if valkey else "Redis",
        version=server.get("valkey_version" if valkey else "redis_version", domain.UNKNOWN),
        run_id=server.get("run_id", ""),
        role="sentinel" if mode == "sentinel" else roles.get("role", "master"),
        mode=mode,
        master=master,
        abilities=abilities,
        acl_file=bool(acl_file[1]) if isinstance(acl_file, list) and len(acl_file) == 2 else None,
    )


def _is_open(default: Reply) -> bool:
    if not isinstance(default, list):
        return False
    rule = replies.user_rule(default)
    return rule is not None and rule.enabled and "nopass" in rule.flags and bool(rule.root.commands)


async def _open_to_all(wire: Wire) -> bool:
    """Whether the server answers somebody who did not log in."""
    try:
        async with wire.session(login=False) as session:
            return bool(await session.run([("PING",)]) == ["PONG"])
    except Refusal:
        return False  # what the login met is told already


@dataclass(frozen=True, slots=True)
class _Trial:
    """Something the operator does, in a form that could be run; it never is."""

    name: str
    command: Command
    key: str | None = None


def _trials(*, acl: bool, acl_file: bool | None, sample_prefix: str) -> list[_Trial]:
    key, user = f"{sample_prefix}:streamhold:probe", "streamhold:probe"
    trials = [
        _Trial("INFO", ("INFO", "server")),
        _Trial("HGETALL", ("HGETALL", OWNERS_KEY), OWNERS_KEY),
        _Trial("HSET", ("HSET", OWNERS_KEY, "probe", ""), OWNERS_KEY),
        _Trial("HDEL", ("HDEL", OWNERS_KEY, "probe"), OWNERS_KEY),
        _Trial("TYPE", ("TYPE", key), key),
        _Trial("XINFO STREAM", ("XINFO", "STREAM", key), key),
        _Trial("XINFO GROUPS", ("XINFO", "GROUPS", key), key),
        _Trial("XGROUP CREATE", ("XGROUP", "CREATE", key, "probe", "$", "MKSTREAM"), key),
        _Trial("PEXPIRE", ("PEXPIRE", key, 1), key),
        _Trial("DEL", ("DEL", key), key),
        _Trial("EVAL", ("EVAL", "return 0", 1, key), key),
        _Trial("SCAN", ("SCAN", 0)),
    ]
    if acl:
        trials += [
            _Trial("ACL CAT", ("ACL", "CAT", "stream")),
            _Trial("ACL SETUSER", ("ACL", "SETUSER", user)),
            _Trial("ACL GETUSER", ("ACL", "GETUSER", user)),
            _Trial("ACL DELUSER", ("ACL", "DELUSER", user)),
        ]
        if acl_file:
            trials.append(_Trial("ACL SAVE", ("ACL", "SAVE")))
    return trials


async def _missing_rights(
    wire: Wire, session: WireSession, facts: ServerFacts, *, acl: bool, sample_prefix: str
) -> tuple[str, ...]:
    # Only inside a transaction the trials are harmless: its beginning and its end are made sure of first.
    (multi,) = await session.run([("MULTI",)])
    if isinstance(multi, ReplyError):
        if multi.code == "NOPERM":
            return ("MULTI",)
        raise refusals.refused(wire.endpoint, multi, "MULTI")
    trials = _trials(acl=acl, acl_file=facts.acl_file, sample_prefix=sample_prefix)
    answers = await session.run([trial.command for trial in trials])
    missing: list[str] = []
    for trial, answer in zip(trials, answers, strict=True):
        if not isinstance(answer, ReplyError):
            continue
        if answer.code != "NOPERM":
            raise refusals.refused(wire.endpoint, answer, trial.name)
        missing.append(f"{trial.name} on {trial.key}" if trial.key and refusals.is_about_key(answer) else trial.name)
    await session.run([("DISCARD",)])
    return tuple(missing)
