"""Which server is meant: URLs, options and redis-py clients, read as redis-py reads them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

import streamhold
from streamhold import RedisStreamsPubSub
from streamhold._backends.redis import target
from streamhold._backends.redis.client import RedisClient
from streamhold._binding import load_binding
from streamhold.errors import AuthenticationFailed, BackendUnavailable, ConfigError

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio
Connect = Callable[..., RedisClient]


@pytest.mark.parametrize(
    ("url", "label", "login"),
    [
        ("redis://", "localhost:6379/0", (None, None)),
        ("redis://redis.shop:7000/5", "redis.shop:7000/5", (None, None)),
        ("redis://h?db=4", "h:6379/4", (None, None)),
        ("redis://:secret@h", "h:6379/0", (None, "secret")),
        ("redis://us%40er:p%2Fw%3A%25@h/1", "h:6379/1", ("us@er", "p/w:%")),
        ("redis://[::1]:6380/2", "[::1]:6380/2", (None, None)),
        ("unix:///run/redis.sock?db=3", "unix:/run/redis.sock/3", (None, None)),
    ],
)
def test_a_url_names_server_database_and_login(url: str, label: str, login: tuple[str | None, str | None]) -> None:
    found = target.from_url(url)
    assert (str(found.endpoint), found.credentials()) == (label, login)
    assert found.endpoint.tls is None


def test_rediss_checks_certificate_and_name_unless_told_otherwise() -> None:
    context = target.from_url("rediss://h").endpoint.tls
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    context = target.from_url("rediss://h?ssl_cert_reqs=none").endpoint.tls
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_options_win_over_the_url() -> None:
    found = target.from_url("redis://u:p@h:1/1", {"password": "other", "db": 2, "decode_responses": True, "ssl": True})
    assert (str(found.endpoint), found.credentials()) == ("h:1/2", ("u", "other"))
    assert found.endpoint.tls is not None


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("http://h", None, "not a Redis URL"),
        ("h:6379", None, "not a Redis URL"),
        ("", None, "not a Redis URL"),
        ("redis://h:99999", None, "not a Redis URL"),
        ("redis://h/orders", None, "database must be a number"),
        ("redis://h?db=x", None, "Invalid value for 'db'"),
        ("redis://h", {"db": -1}, "db=-1"),
        ("redis://h", {"port": 0}, "port=0"),
        ("redis://h", {"pasword_": "x"}, "pasword_"),
        ("rediss://h?ssl_cert_reqs=perhaps", None, "ssl_cert_reqs='perhaps'"),
        ("rediss://h?ssl_ca_certs=/none/such.pem", None, "TLS option"),
    ],
)
def test_what_cannot_be_used_is_named(url: str, options: dict[str, Any] | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        target.from_url(url, options)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@h/orders",
        "http://user:hunter2@h",
        "redis://:hunter2@h:x",
        "redis://hunter2@h:x",  # the password where the user should be
        "redis://user:hunter2/x@h:1/0",  # not percent-encoded
        "redis://user:hunter2#x@h:1/0",
        "redis://user:hunter2?x@h:1/0",
        "redis://user:1/hunter2@h",
        "redis://:hunter2:6379/0",  # the @ forgotten
        "redis://h:1/orders?password=hunter2",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        target.from_url(url)
    chain: BaseException | None = error.value
    while chain is not None:
        assert "hunter2" not in str(chain)
        assert "hunter2" not in repr(chain)
        chain = chain.__cause__ or chain.__context__
    assert "hunter2" not in repr(target.from_url("redis://user:hunter2@h"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": b"redis://:hunter2@h"}, "url=<class 'bytes'>"),
        ({"redis_options": [("password", "hunter2")]}, "redis_options=<class 'list'>"),
        ({"redis_options": {"password": b"hunter2"}}, "password=<class 'bytes'>"),
        ({"redis_options": {"username": ["hunter2"]}}, "username=<class 'list'>"),
        ({"redis_options": {"credential_provider": "hunter2"}}, "get_credentials"),
        ({"redis_options": {"port": "hunter2"}}, "port="),
    ],
)
def test_an_option_that_may_hold_a_password_is_not_shown(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        RedisStreamsPubSub(**options)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("text", ["redis:/user:hunter2@h", "user:hunter2@h:6379"])
def test_a_url_that_is_taken_for_a_folder_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="redis://user:password@host") as error:
        streamhold.connect(text)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("socket_connect_timeout", value) for value in (float("nan"), -1, 0, "x", True)],
        *[("db", value) for value in (2**31, "\u0663", "9" * 5000)],
        *[("host", value) for value in (5, b"h")],
    ],
)
def test_a_connection_option_of_no_use_is_an_error_at_once(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=option):
        target.from_url("redis://h", {option: value})


def test_a_timeout_must_be_a_number_of_seconds() -> None:
    for bad in (0, -1, float("inf"), float("nan"), True, "5", None):
        with pytest.raises(ConfigError, match="timeout"):
            RedisClient.from_url("redis://h", timeout=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode_responses", [True, False])
async def test_a_redis_py_client_handed_in_lends_its_settings(
    redis_server: RedisServer, key_prefix: str, kind: Any, protocol: int, decode_responses: bool
) -> None:
    handed_in = kind.from_url(redis_server.url(database=2), protocol=protocol, decode_responses=decode_responses)
    client = RedisClient.from_redis_py(handed_in)
    try:
        assert client.server_label == f"{redis_server.host}:{redis_server.port}/2"
        assert await client.execute("ECHO", "x") == b"x"
    finally:
        await client.aclose()


def test_a_redis_py_client_with_tls_lends_that_too() -> None:
    found = target.from_redis_py(redis.asyncio.Redis(host="h", ssl=True, ssl_check_hostname=False, username="u"))
    assert found.endpoint.tls is not None
    assert found.endpoint.tls.check_hostname is False
    assert found.credentials() == ("u", None)


@pytest.mark.parametrize(
    ("handed_in", "says"),
    [
        (lambda: redis.sentinel.Sentinel([("h", 1)]), "Sentinel is not supported yet"),
        (lambda: redis.asyncio.sentinel.Sentinel([("h", 1)]).master_for("m"), "Sentinel is not supported yet"),
        (lambda: redis.sentinel.Sentinel([("h", 1)]).master_for("m"), "Sentinel is not supported yet"),
        (lambda: redis.asyncio.RedisCluster(host="h"), "Cluster is not supported yet"),
        (lambda: redis.asyncio.Redis(redis_connect_func=print), "redis_connect_func"),
        (lambda: "redis://h", r"must be a redis\.asyncio\.Redis"),
        (lambda: None, r"must be a redis\.asyncio\.Redis"),
    ],
)
async def test_other_objects_are_refused_with_the_reason(handed_in: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RedisClient.from_redis_py(handed_in())


@pytest.fixture
def binding(redis_server: RedisServer, tmp_path: Path) -> Path:
    """A mounted binding of the shared server, database 4."""
    settings = {
        "version": 1,
        "client": {"namespace": "shop", "name": "checkout"},
        "connection": {
            "topology": "Standalone",
            "endpoints": [f"{redis_server.host}:{redis_server.port}"],
            "database": 4,
            "tls": None,
        },
        "topics": [],
        "leases": [],
    }
    files = {
        "type": "redis",
        "provider": "streamhold",
        "username": redis_server.admin_username,
        "password": redis_server.password or "",
        "streamhold.json": json.dumps(settings),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


async def test_a_binding_names_the_server_and_is_read_again_at_each_connect(
    binding: Path, redis_server: RedisServer
) -> None:
    client = RedisClient.from_binding(await asyncio.to_thread(load_binding, binding))
    try:
        assert client.server_label == f"{redis_server.host}:{redis_server.port}/4"
        right = (binding / "password").read_text()
        (binding / "password").write_text("not yet")
        with pytest.raises(AuthenticationFailed):
            await client.execute("PING")
        (binding / "password").unlink()
        with pytest.raises(BackendUnavailable, match="password"):
            await client.execute("PING", timeout=0.5)
        (binding / "password").write_text(right)
        assert await client.execute("PING") == b"PONG"
    finally:
        await client.aclose()


def test_a_deployment_that_is_not_supported_yet_is_named(binding: Path) -> None:
    settings = json.loads((binding / "streamhold.json").read_text())
    settings["connection"]["topology"] = "Cluster"
    (binding / "streamhold.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="Cluster"):
        RedisClient.from_binding(load_binding(binding))


async def test_a_unix_socket_works(own_redis: Callable[..., RedisServer], tmp_path: Path, connect: Connect) -> None:
    path = tmp_path / "redis.sock"
    own_redis(password="secret", config={"unixsocket": str(path)})
    client = connect(f"unix://:secret@{path}?db=1")
    assert await client.execute("ECHO", "x") == b"x"
    assert client.server_label == f"unix:{path}/1"


async def test_a_unix_socket_that_is_not_there_is_named(tmp_path: Path, connect: Connect) -> None:
    client = connect(f"unix://{tmp_path}/none.sock", timeout=0.3)
    with pytest.raises(BackendUnavailable, match=r"none\.sock"):
        await client.execute("PING")


async def test_speaking_tls_to_a_plain_server_ends_by_the_deadline(redis_server: RedisServer, connect: Connect) -> None:
    client = connect(redis_server.url().replace("redis://", "rediss://"), timeout=1)
    with pytest.raises(BackendUnavailable):
        await client.execute("PING")
