"""What messages say about a command: its name and keys, and never anybody's data."""

from __future__ import annotations

import pytest

from streamhold._backends.redis import replies
from streamhold._backends.redis.command import Arg, ReplyError
from streamhold.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    PermissionRefused,
    ServerFull,
    WrongKeyType,
)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ((b"XADD", b"a:b", b"*", b"event", b"data"), "XADD 'a:b'"),
        (("xgroup", "CREATE", "a:b", "g", "$"), "XGROUP CREATE 'a:b'"),
        (("XINFO", "groups", "a:b"), "XINFO GROUPS 'a:b'"),
        (("EVALSHA", "abc", 2, "k1", "k2", "data"), "EVALSHA 'k1', 'k2'"),
        (("EVAL", "return 1", "0"), "EVAL"),
        (("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "a", "b", ">", ">"), "XREADGROUP 'a', 'b'"),
        (("XREAD", "COUNT", 1), "XREAD"),
        (("AUTH", "user", "password"), "AUTH"),
        (("PING",), "PING"),
        ((b"GET", b"\xff\n"), r"GET '\\xff\n'"),
        ((), ""),
    ],
)
def test_a_command_is_shown_by_name_and_keys(args: tuple[Arg, ...], shown: str) -> None:
    assert replies.describe(args) == shown


IN_OLD_SCRIPT = "ERR Error running script (call to f_5a1d): @user_script:3: "


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        ("NOAUTH Authentication required.", "NOAUTH", AuthenticationFailed),
        ("WRONGPASS invalid username-password pair", "WRONGPASS", AuthenticationFailed),
        ("NOPERM this user has no permissions", "NOPERM", PermissionRefused),
        ("ERR ACL failure in script: User x has no permissions", "NOPERM", PermissionRefused),
        (
            IN_OLD_SCRIPT + "The user executing the script can't run this command or subcommand",
            "NOPERM",
            PermissionRefused,
        ),
        ("WRONGTYPE Operation against a key", "WRONGTYPE", WrongKeyType),
        (IN_OLD_SCRIPT + "WRONGTYPE Operation against a key", "WRONGTYPE", WrongKeyType),
        ("OOM command not allowed", "OOM", ServerFull),
        (IN_OLD_SCRIPT + "-READONLY You can't write against a read only replica.", "READONLY", BackendUnavailable),
        ("LOADING Redis is loading the dataset in memory", "LOADING", BackendUnavailable),
        ("NOGROUP No such key", "NOGROUP", BackendError),
        ("ERR unknown command 'X'", "ERR", BackendError),
    ],
)
def test_an_error_reply_becomes_the_error_that_names_the_fact(text: str, code: str, kind: type[BackendError]) -> None:
    error = replies.error_from_reply(ReplyError(text), "XADD 'a'", "h:1/0")
    assert type(error) is kind
    assert (error.code, error.server) == (code, "h:1/0")
    assert text in str(error)
    assert "XADD 'a'" in str(error)
