"""Each way in which a connection can fail has a reason of its own, met on a real server (O13, O21)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from streamhold_dev.proxy import Proxy
from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually, eventually_sync
from streamhold_operator.adapters.redis import RedisAdmin, Tls
from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.redisconnection import Topology
from streamhold_operator.domain.connection import Endpoint, Want, check, conclude
from streamhold_operator.domain.outcome import Refusal
from support.tls import Authority, terminator

pytestmark = pytest.mark.anyio
AdminOf = Callable[..., RedisAdmin]
OwnRedis = Callable[..., RedisServer]


async def refusal_of(admin: RedisAdmin) -> Refusal:
    """What stands in the way of Ready."""
    try:
        facts = await admin.probe()
    except Refusal as refusal:
        return refusal
    found = check(Want(endpoint=admin.target.endpoint, username=admin.target.username), facts)
    assert found is not None, f"nothing stands in the way: {facts}"
    return found


def writes(server: RedisServer) -> int:
    """How many commands that write, or change users, the server ever ran."""
    stats = server.cli("INFO", "commandstats")
    if server.flavour.version < (7, 0):  # there ACL is counted as one, reading included
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in WRITING)
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in WRITING | WRITING_USERS)


WRITING = {"hset", "hdel", "xgroup", "xgroup|create", "del", "eval", "pexpire"}
WRITING_USERS = {"acl|setuser", "acl|deluser", "acl|save"}


async def test_a_server_that_answers_is_described_and_ready(any_redis_server: RedisServer, admin_of: AdminOf) -> None:
    admin = admin_of(any_redis_server)
    facts = await admin.probe()
    flavour = any_redis_server.flavour
    assert facts.product.lower() == flavour.product
    assert facts.version.startswith(".".join(str(part) for part in flavour.version))
    assert facts.abilities.selectors == (flavour.product == "valkey" or flavour.version >= (7, 0))
    assert facts.abilities.client_setinfo == (flavour.product == "valkey" or flavour.version >= (7, 2))
    assert (facts.role, facts.mode, facts.missing_rights) == ("master", "standalone", ())
    outcome = conclude(Want(endpoint=admin.target.endpoint), facts)
    assert (outcome.ready, outcome.reason, outcome.warnings) == (True, Reason.READY, ())


async def test_the_aclfile_is_seen(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    assert (await admin_of(own_redis(password="secret", aclfile=True)).probe()).acl_file is True
    assert (await admin_of(own_redis(password="secret")).probe()).acl_file is False


async def test_a_host_that_does_not_resolve_is_unreachable(redis_server: RedisServer, admin_of: AdminOf) -> None:
    refusal = await refusal_of(admin_of(redis_server, endpoint=Endpoint("no-such-host.invalid", 6379)))
    assert refusal.reason == Reason.UNREACHABLE
    assert "no-such-host.invalid" in refusal.message
    assert "resolve" in refusal.message
    assert refusal.retry_after is not None


async def test_a_port_where_nobody_listens_is_unreachable(redis_server: RedisServer, admin_of: AdminOf) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        refusal = await refusal_of(admin_of(redis_server, endpoint=Endpoint("127.0.0.1", port)))
    assert refusal.reason == Reason.UNREACHABLE
    assert f"127.0.0.1:{port} refused the connection" in refusal.message


async def test_a_server_that_does_not_answer_is_unreachable_in_time(
    redis_server: RedisServer, admin_of: AdminOf, proxy: Callable[[int], Proxy]
) -> None:
    between = proxy(redis_server.port)
    between.swallow_replies()
    refusal = await refusal_of(admin_of(redis_server, endpoint=Endpoint("127.0.0.1", between.port), timeout=0.3))
    assert refusal.reason == Reason.UNREACHABLE
    assert "did not answer within 0.3" in refusal.message


async def test_a_frozen_server_is_unreachable_and_comes_back(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    server = own_redis(password="secret")
    admin = admin_of(server, timeout=0.3)
    await admin.probe()
    await admin.observe({})
    server.pause()
    started = anyio.current_time()
    with pytest.raises(Refusal) as caught:
        await admin.observe({})
    assert caught.value.reason == Reason.UNREACHABLE
    assert anyio.current_time() - started < 0.6  # one deadline, not one for each try
    server.resume()
    await admin.observe({})


async def test_a_restart_between_two_calls_is_not_even_noticed(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    server = own_redis(password="secret")
    admin = admin_of(server)
    before = await admin.observe({})
    server.restart()
    after = await admin.observe({})
    assert before.run_id
    assert after.run_id not in ("", before.run_id)


async def test_a_server_full_of_clients_is_unreachable(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    server = own_redis(password="secret", config={"maxclients": "2"})
    async with server.client() as one, server.client() as two:
        await one.ping()
        await two.ping()
        refusal = await refusal_of(admin_of(server))
    assert refusal.reason == Reason.UNREACHABLE
    assert "maxclients" in refusal.message


async def test_a_wrong_password_is_auth_failed(any_redis_server: RedisServer, admin_of: AdminOf) -> None:
    refusal = await refusal_of(admin_of(any_redis_server, password="wrong"))
    assert refusal.reason == Reason.AUTH_FAILED
    assert "adminSecretRef" in refusal.message
    assert "wrong" not in refusal.message
    assert refusal.warnings == ()


async def test_no_password_where_one_is_asked_for_is_auth_failed(
    any_redis_server: RedisServer, admin_of: AdminOf
) -> None:
    refusal = await refusal_of(admin_of(any_redis_server, username=None, password=None))
    assert refusal.reason == Reason.AUTH_FAILED


@pytest.mark.parametrize("username", ["admin", "default", None])
async def test_case_O13_a_wrong_password_beside_an_open_default_user_fails_with_a_warning_and_no_write(
    own_redis: OwnRedis, admin_of: AdminOf, username: str | None, redis_flavour: str
) -> None:
    server = own_redis(redis_flavour, password="secret", default_user_open=True)
    before = writes(server)
    refusal = await refusal_of(admin_of(server, username=username, password="wrong"))
    assert refusal.reason == Reason.AUTH_FAILED
    assert any("open" in warning for warning in refusal.warnings)
    assert writes(server) == before


async def test_an_open_default_user_is_warned_of_though_all_works(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    admin = admin_of(own_redis(password="secret", default_user_open=True))
    facts = await admin.probe()
    outcome = conclude(Want(endpoint=admin.target.endpoint), facts)
    assert outcome.ready
    assert "open" in outcome.warnings[0]


async def test_missing_rights_are_listed_and_nothing_is_done(
    own_redis: OwnRedis, admin_of: AdminOf, redis_flavour: str
) -> None:
    server = own_redis(redis_flavour, password="secret")
    rights = ["~*", "&*", "+@all", "-acl|setuser", "-xgroup", "-hset"]
    if server.flavour.version < (7, 0):  # it cannot take a single subcommand away
        rights = ["~*", "&*", "+@all", "-acl", "-xgroup", "-hset"]
    server.cli("ACL", "SETUSER", "weak", "on", ">pw", *rights)
    before = writes(server)
    refusal = await refusal_of(admin_of(server, username="weak", password="pw"))
    assert refusal.reason == Reason.MISSING_RIGHTS
    for name in ("ACL SETUSER", "XGROUP CREATE", "HSET"):
        assert name in refusal.message
    for name in ("HDEL", "PEXPIRE", "XINFO"):
        assert name not in refusal.message
    assert writes(server) == before
    assert server.cli("DBSIZE") == 0


async def test_rights_on_the_wrong_keys_are_listed_with_the_key(
    own_redis: OwnRedis, admin_of: AdminOf, redis_flavour: str
) -> None:
    server = own_redis(redis_flavour, password="secret")
    server.cli("ACL", "SETUSER", "weak", "on", ">pw", "~streamhold:owners", "&*", "+@all")
    refusal = await refusal_of(admin_of(server, username="weak", password="pw", sample_prefix="streamhold:shop"))
    assert refusal.reason == Reason.MISSING_RIGHTS
    assert "XGROUP CREATE on streamhold:shop:" in refusal.message
    assert "HSET" not in refusal.message


async def test_a_user_without_transactions_lacks_them_and_nothing_is_tried(
    own_redis: OwnRedis, admin_of: AdminOf, redis_flavour: str
) -> None:
    server = own_redis(redis_flavour, password="secret")
    server.cli("ACL", "SETUSER", "weak", "on", ">pw", "~*", "&*", "+@all", "-multi")
    refusal = await refusal_of(admin_of(server, username="weak", password="pw"))
    assert refusal.reason == Reason.MISSING_RIGHTS
    assert "MULTI" in refusal.message
    assert server.cli("DBSIZE") == 0


async def test_access_shared_needs_no_rights_on_acl(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    server = own_redis(password="secret")
    server.cli("ACL", "SETUSER", "cloud", "on", ">pw", "~*", "&*", "+@all", "-acl")
    assert (await refusal_of(admin_of(server, username="cloud", password="pw"))).reason == Reason.MISSING_RIGHTS
    facts = await admin_of(server, username="cloud", password="pw", acl=False).probe()
    assert facts.missing_rights == ()


async def test_a_database_that_is_not_there_is_named(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    refusal = await refusal_of(admin_of(own_redis(password="secret", databases=4), database=7))
    assert refusal.reason == Reason.SERVER_REFUSED
    assert "no database 7" in refusal.message


async def test_a_replica_is_read_only_and_its_master_is_named(
    own_redis: OwnRedis, admin_of: AdminOf, redis_flavour: str
) -> None:
    master = own_redis(redis_flavour)
    replica = own_redis(redis_flavour, config={"replicaof": f"127.0.0.1 {master.port}"})
    refusal = await refusal_of(admin_of(replica))
    assert refusal.reason == Reason.READ_ONLY
    assert f"127.0.0.1:{master.port}" in refusal.message


async def test_a_master_that_becomes_a_replica_refuses_writes_with_the_reason(
    own_redis: OwnRedis, admin_of: AdminOf
) -> None:
    from streamhold_operator.domain.actions import CreateGroup

    master, other = own_redis(), own_redis()
    admin = admin_of(master)
    await admin.probe()
    master.cli("REPLICAOF", "127.0.0.1", str(other.port))
    (result,) = await admin.apply([CreateGroup(key="k", group="g", start="0")])
    assert result.failure is not None
    assert result.failure.reason == Reason.READ_ONLY


async def test_a_cluster_node_is_the_wrong_topology(own_redis: OwnRedis, admin_of: AdminOf, redis_flavour: str) -> None:
    node = own_redis(redis_flavour, config={"cluster-enabled": "yes"})
    refusal = await refusal_of(admin_of(node))
    assert refusal.reason == Reason.WRONG_TOPOLOGY
    assert "Cluster" in refusal.message


async def test_a_sentinel_is_the_wrong_topology(
    own_redis: OwnRedis, admin_of: AdminOf, redis_flavour: str, tmp_path: Path
) -> None:
    from streamhold_dev import flavours, ports, processes

    binary = flavours.flavour(redis_flavour).binary()
    port = ports.free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
    sentinel = processes.Server("sentinel", [binary, config, "--sentinel"], tmp_path / "sentinel.log")
    try:
        eventually_sync(lambda: _listens(port), message="the Sentinel does not listen")
        server = own_redis(redis_flavour)
        refusal = await refusal_of(admin_of(server, endpoint=Endpoint("127.0.0.1", port)))
    finally:
        sentinel.end()
    assert refusal.reason == Reason.WRONG_TOPOLOGY
    assert "Sentinel" in refusal.message


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("topology", [Topology.SENTINEL, Topology.CLUSTER])
async def test_a_topology_that_is_not_built_yet_is_said_so(
    redis_server: RedisServer, admin_of: AdminOf, topology: Topology
) -> None:
    refusal = await refusal_of(admin_of(redis_server, topology=topology))
    assert refusal.reason == Reason.TOPOLOGY_NOT_SUPPORTED
    assert topology.value in refusal.message


async def test_a_loading_server_is_told_apart_and_asked_again(
    own_redis: OwnRedis, admin_of: AdminOf, redis_flavour: str
) -> None:
    # It answers others once every 2 MB that it loaded.
    slow = {"save": "3600 1", "rdbcompression": "no", "key-load-delay": "50000"}
    server = own_redis(redis_flavour, password="secret", config=slow)
    async with server.client() as client:
        for number in range(40):
            await client.set(f"k{number}", "v" * 1_000_000)
    server.shut_down()

    async def loading() -> Refusal | None:
        try:
            await admin_of(server).probe()
        except Refusal as refusal:
            return refusal if refusal.reason == Reason.LOADING else None
        raise RuntimeError("it loaded too fast for this test")

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, server.start)
        refusal = await eventually(loading, message="it never said that it is loading")
    assert refusal.retry_after is not None
    await admin_of(server).probe()


class TestTls:
    """CertificateInvalid, and what is not it."""

    async def test_a_trusted_certificate_is_accepted(
        self, redis_server: RedisServer, admin_of: AdminOf, tmp_path: Path
    ) -> None:
        authority = Authority()
        async with terminator(redis_server.port, authority.issue("127.0.0.1"), tmp_path) as port:
            admin = admin_of(redis_server, endpoint=Endpoint("127.0.0.1", port), tls=Tls(ca=authority.pem))
            assert (await admin.probe()).role == "master"
            await admin.aclose()

    async def test_a_certificate_of_another_authority_is_invalid(
        self, redis_server: RedisServer, admin_of: AdminOf, tmp_path: Path
    ) -> None:
        async with terminator(redis_server.port, Authority().issue("127.0.0.1"), tmp_path) as port:
            admin = admin_of(redis_server, endpoint=Endpoint("127.0.0.1", port), tls=Tls(ca=Authority("other").pem))
            refusal = await refusal_of(admin)
        assert refusal.reason == Reason.CERTIFICATE_INVALID
        assert "caSecretRef" in refusal.message

    async def test_a_certificate_of_another_name_is_invalid_unless_that_name_is_expected(
        self, redis_server: RedisServer, admin_of: AdminOf, tmp_path: Path
    ) -> None:
        authority = Authority()
        async with terminator(redis_server.port, authority.issue("redis.example.com"), tmp_path) as port:
            endpoint = Endpoint("127.0.0.1", port)
            refusal = await refusal_of(admin_of(redis_server, endpoint=endpoint, tls=Tls(ca=authority.pem)))
            named = Tls(ca=authority.pem, server_name="redis.example.com")
            admin = admin_of(redis_server, endpoint=endpoint, tls=named)
            assert (await admin.probe()).role == "master"
            await admin.aclose()
        assert refusal.reason == Reason.CERTIFICATE_INVALID
        assert "serverName" in refusal.message

    async def test_a_client_certificate_is_presented(
        self, redis_server: RedisServer, admin_of: AdminOf, tmp_path: Path
    ) -> None:
        authority = Authority()
        ours = authority.issue("operator")
        identity = authority.issue("127.0.0.1")
        async with terminator(redis_server.port, identity, tmp_path, client_authority=authority) as port:
            endpoint = Endpoint("127.0.0.1", port)
            refusal = await refusal_of(admin_of(redis_server, endpoint=endpoint, tls=Tls(ca=authority.pem)))
            mutual = Tls(ca=authority.pem, cert=ours.cert, key=ours.key)
            admin = admin_of(redis_server, endpoint=endpoint, tls=mutual)
            assert (await admin.probe()).role == "master"
            await admin.aclose()
        assert refusal.reason == Reason.UNREACHABLE  # TLS 1.3 only says so by hanging up
        assert "clientCertSecretRef" in refusal.message

    async def test_a_port_without_tls_is_unreachable_with_a_hint(
        self, redis_server: RedisServer, admin_of: AdminOf
    ) -> None:
        refusal = await refusal_of(admin_of(redis_server, timeout=0.5, tls=Tls(ca=Authority().pem)))
        assert refusal.reason == Reason.UNREACHABLE
        assert "does not speak TLS" in refusal.message

    async def test_a_port_that_wants_tls_is_unreachable_with_a_hint(
        self, redis_server: RedisServer, admin_of: AdminOf, tmp_path: Path
    ) -> None:
        async with terminator(redis_server.port, Authority().issue("127.0.0.1"), tmp_path) as port:
            refusal = await refusal_of(admin_of(redis_server, endpoint=Endpoint("127.0.0.1", port)))
        assert refusal.reason == Reason.UNREACHABLE
        assert "spec.tls" in refusal.message

    async def test_bad_pem_is_the_secrets_fault(self, redis_server: RedisServer, admin_of: AdminOf) -> None:
        for ca in (b"nonsense", b"", b"\xff"):
            refusal = await refusal_of(admin_of(redis_server, tls=Tls(ca=ca)))
            assert refusal.reason == Reason.SECRET_INVALID
            assert "caSecretRef" in refusal.message
        ours = Authority().issue("operator")
        broken = Tls(ca=Authority().pem, cert=ours.cert, key=b"nonsense")
        assert (await refusal_of(admin_of(redis_server, tls=broken))).reason == Reason.SECRET_INVALID
