"""What error replies mean: the texts are those that servers send."""

from __future__ import annotations

import pytest

from streamhold_operator.adapters.redis_refusals import has_no_acl_file, is_about_key, no_database, refused
from streamhold_operator.adapters.redis_wire import ReplyError
from streamhold_operator.domain.connection import Endpoint

AT = Endpoint("redis", 6379)


@pytest.mark.parametrize(
    ("code", "text", "reason", "told"),
    [
        ("LOADING", "Redis is loading the dataset in memory", "Loading", "asked again"),
        ("NOAUTH", "Authentication required.", "AuthFailed", "adminSecretRef"),
        ("NOPERM", "this user has no permissions to run the 'hset' command", "MissingRights", "'hset'"),
        ("READONLY", "You can't write against a read only replica.", "ReadOnly", "name the master"),
        ("MASTERDOWN", "Link with MASTER is down", "ReadOnly", "name the master"),
        ("WRONGTYPE", "Operation against a key holding the wrong kind of value", "WrongType", "delete that key"),
        ("MOVED", "866 127.0.0.1:7001", "WrongTopology", "Cluster"),
        ("OOM", "command not allowed when used memory > 'maxmemory'.", "ServerRefused", "maxmemory"),
        ("MISCONF", "Errors writing to the AOF file", "ServerRefused", "disk"),
        ("NOREPLICAS", "Not enough good replicas to write.", "ServerRefused", "min-replicas-to-write"),
        ("BUSY", "Valkey is busy running a script.", "ServerRefused", "SCRIPT KILL"),
        ("ERR", "something new", "ServerRefused", "something new"),
    ],
)
def test_each_error_has_a_reason_and_an_advice(code: str, text: str, reason: str, told: str) -> None:
    refusal = refused(AT, ReplyError(code, text), "HSET x")
    assert refusal.reason == reason
    assert told in refusal.message
    assert "redis:6379" in refusal.message


def test_a_refused_select_is_told_apart_from_a_missing_database() -> None:
    assert no_database(AT, 7, ReplyError("NOPERM", "…")).reason == "MissingRights"
    assert no_database(AT, 7, ReplyError("ERR", "DB index is out of range")).reason == "ServerRefused"


@pytest.mark.parametrize(
    ("text", "about_key"),
    [
        ("this user has no permissions to run the 'hset' command", False),
        ("this user has no permissions to run the 'xgroup' command or its subcommand", False),
        ("User weak has no permissions to run the 'acl|setuser' command", False),
        ("this user has no permissions to access one of the keys used as arguments", True),
        ("No permissions to access a key", True),
    ],
)
def test_a_missing_right_on_a_key_is_told_apart_from_one_on_a_command(text: str, about_key: bool) -> None:
    assert is_about_key(ReplyError("NOPERM", text)) == about_key


def test_a_server_without_a_users_file_is_recognised() -> None:
    text = "This {} instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER"
    assert has_no_acl_file(ReplyError("ERR", text.format("Valkey")))
    assert not has_no_acl_file(ReplyError("ERR", "There was an error trying to save the ACLs."))
