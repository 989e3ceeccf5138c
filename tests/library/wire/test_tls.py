"""TLS, on a server that has it (Debian's Redis 7.0): the certificate is checked, and a bad one is told apart."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamhold._backends.redis.client import RedisClient
from streamhold._backends.redis.endpoint import Endpoint, StaticCredentials
from streamhold._backends.redis.target import Target
from streamhold.errors import BackendUnavailable
from streamhold_dev import flavours, ports
from streamhold_dev.certificates import Authority

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio
Connect = Callable[..., RedisClient]


@pytest.fixture
def tls_server(own_redis: Callable[..., RedisServer], tmp_path: Path) -> tuple[int, Authority]:
    """A server whose certificate is for `localhost` and `redis.shop` only: its TLS port and the authority."""
    try:
        flavours.flavour("redis-7.0").binary()
    except flavours.FlavourMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    authority, port = Authority("ours", tmp_path), ports.free_port()
    pair = authority.issue("server", tmp_path, hosts=("localhost", "redis.shop"))
    files = {"tls-cert-file": pair.certificate, "tls-key-file": pair.key, "tls-ca-cert-file": authority.certificate}
    config = {"tls-port": str(port), "tls-auth-clients": "no", **{name: str(path) for name, path in files.items()}}
    own_redis("redis-7.0", password="secret", config=config)
    return port, authority


async def test_a_server_with_the_right_certificate_is_spoken_to(
    tls_server: tuple[int, Authority], connect: Connect
) -> None:
    port, authority = tls_server
    client = connect(f"rediss://:secret@localhost:{port}/1?ssl_ca_certs={authority.certificate}")
    assert await asyncio.gather(*(client.execute("ECHO", b"x" * n) for n in range(0, 50_000, 500))) == [
        b"x" * n for n in range(0, 50_000, 500)
    ]
    started = asyncio.get_running_loop().time()
    await client.aclose()
    assert asyncio.get_running_loop().time() - started < 1.5


async def test_the_name_in_the_certificate_may_differ_from_the_address(tls_server: tuple[int, Authority]) -> None:
    port, authority = tls_server
    endpoint = Endpoint(
        host="127.0.0.1",
        port=port,
        tls=ssl.create_default_context(cafile=authority.certificate),
        server_name="redis.shop",
    )
    client = RedisClient(Target(endpoint=endpoint, credentials=StaticCredentials(None, "secret")))
    try:
        assert await client.execute("PING") == b"PONG"
    finally:
        await client.aclose()


@pytest.mark.parametrize("case", ["another authority", "another name"])
async def test_a_bad_certificate_is_told_at_once(
    tls_server: tuple[int, Authority], tmp_path: Path, connect: Connect, case: str
) -> None:
    port, authority = tls_server
    host = "localhost"
    if case == "another name":
        host = "127.0.0.1"
    else:
        authority = Authority("theirs", tmp_path)
    client = connect(f"rediss://:secret@{host}:{port}?ssl_ca_certs={authority.certificate}", timeout=20)
    started = asyncio.get_running_loop().time()
    with pytest.raises(BackendUnavailable, match="certificate"):
        await client.execute("PING")
    assert asyncio.get_running_loop().time() - started < 5
