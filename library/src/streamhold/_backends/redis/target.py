"""Which server to talk to and how: read from a URL, a binding, or a redis-py client that was handed in.

redis-py parses its own URLs and option names here, so that what works with it works with us; none of its connections
is used.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.sentinel

from streamhold._backends.redis.endpoint import Credentials, Endpoint, StaticCredentials
from streamhold.errors import ConfigError

if TYPE_CHECKING:
    from streamhold._binding import Binding

__all__ = ["Target", "from_binding", "from_redis_py", "from_url"]

_CONNECT_TIMEOUT = 5.0
_LONGEST_TIMEOUT = 24 * 3600.0
_EXPECTED = (
    "expected redis://user:password@host:6379/0, with the characters / ? # @ : % of user and password percent-encoded"
)
# Options of redis-py about how it decodes, pools and retries: they say nothing about the server.
_WITHOUT_MEANING_HERE = frozenset(
    {
        "decode_responses", "encoding", "encoding_errors", "encoder_class", "parser_class", "protocol",
        "legacy_responses", "socket_read_size", "socket_keepalive", "socket_keepalive_options", "socket_type",
        "retry", "retry_on_error", "retry_on_timeout", "health_check_interval", "max_connections", "timeout",
        "lib_name", "lib_version", "driver_info", "client_name", "connection_class", "command_packer",
        "event_dispatcher", "himport_registry", "maint_notifications_config", "maint_notifications_pool_handler",
        "maintenance_state", "maintenance_notification_hash", "orig_host_address", "orig_socket_timeout",
        "orig_socket_connect_timeout", "oss_cluster_maint_notifications_handler", "single_connection_client",
        "auto_close_connection_pool", "redis_connect_func", "ssl", "socket_timeout",
    }
)  # fmt: skip
_WITH_MEANING = frozenset(
    {
        "host", "port", "db", "path", "unix_socket_path", "username", "password", "credential_provider",
        "socket_connect_timeout", "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_include_verify_flags",
        "ssl_exclude_verify_flags", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_check_hostname",
        "ssl_min_version", "ssl_ciphers", "ssl_password",
    }
)  # fmt: skip
_LARGEST_DATABASE = 2**31 - 1
_CERT_REQUIREMENTS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, who we are there, and how long connecting may take."""

    endpoint: Endpoint
    credentials: Credentials
    connect_timeout: float = _CONNECT_TIMEOUT


def from_url(url: str, options: Mapping[str, Any] | None = None) -> Target:
    """Read `redis://`, `rediss://` and `unix://` as redis-py does.

    Args:
        url: user, password, host, port, database, and options as its query.
        options: further options by the names of redis-py's client (`redis_options`); they win over the URL.

    Raises:
        ConfigError: the URL or an option is not usable.
    """
    shown = _without_login(url)
    problem = ""
    try:
        parsed = dict(redis.connection.parse_url(url))  # type: ignore[no-untyped-call]
    except ValueError as exc:
        # What it quotes, and the exception itself, may hold a part of the password; redis-py quotes option names.
        problem = str(exc)
        if not problem.startswith("Invalid value for"):
            problem = re.split("['\"]", problem)[0].strip()
    if problem:
        raise ConfigError("url", shown, f"not a Redis URL ({problem}); {_EXPECTED}")
    kind = parsed.pop("connection_class", None)
    tls = isinstance(kind, type) and issubclass(kind, redis.connection.SSLConnection)
    _check_database_of(url, shown)
    given = {**parsed, **(options or {})}
    if "ssl" in given:
        tls = bool(given["ssl"])
    return _from_kwargs(given, tls=tls, origin="redis_options" if options else "url")


def from_binding(binding: Binding) -> Target:
    """Read a binding folder's connection; its credentials are read again at each connect.

    Raises:
        BindingError: its certificate is not usable.
        ConfigError: it names a deployment that is not supported yet.
    """
    if binding.connection.topology != "Standalone":
        raise ConfigError(
            "connection.topology", binding.connection.topology, "only Standalone is supported by this version"
        )
    host, port = binding.endpoints[0]
    tls = binding.connection.tls
    return Target(
        endpoint=Endpoint(
            host=host,
            port=port,
            database=binding.connection.database,
            tls=binding.ssl_context(),
            server_name=tls.server_name if tls is not None else None,
        ),
        credentials=binding.credentials,
    )


def from_redis_py(client: object) -> Target:
    """Read the settings of a `redis.Redis` or `redis.asyncio.Redis`, whatever its protocol and decoding.

    Raises:
        ConfigError: it is another kind of object, or one that is not supported yet.
    """
    kind = f"{type(client).__module__}.{type(client).__qualname__}"
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        raise ConfigError("client", kind, "Cluster is not supported yet; hand in a client of a standalone server")
    if isinstance(client, redis.sentinel.Sentinel | redis.asyncio.sentinel.Sentinel):
        raise ConfigError("client", kind, "Sentinel is not supported yet; hand in a client of a standalone server")
    if not isinstance(client, redis.Redis | redis.asyncio.Redis):
        raise ConfigError("client", kind, "must be a redis.asyncio.Redis or redis.Redis")
    pool = client.connection_pool
    if isinstance(pool, redis.sentinel.SentinelConnectionPool | redis.asyncio.sentinel.SentinelConnectionPool):
        raise ConfigError("client", kind, "Sentinel is not supported yet; hand in a client of a standalone server")
    if pool.connection_kwargs.get("redis_connect_func") is not None:
        raise ConfigError("client", kind, "redis_connect_func is not supported: its connections are not used")
    tls = issubclass(pool.connection_class, redis.connection.SSLConnection | redis.asyncio.SSLConnection)
    return _from_kwargs(dict(pool.connection_kwargs), tls=tls, origin="client")


def _from_kwargs(given: dict[str, Any], *, tls: bool, origin: str) -> Target:
    if unknown := sorted(given.keys() - _WITH_MEANING - _WITHOUT_MEANING_HERE):
        raise ConfigError(origin, unknown, "unknown options; the names are those of redis-py's client")
    database = given.get("db") or 0
    if not _is_natural(database) or int(database) > _LARGEST_DATABASE:
        raise ConfigError(
            "db",
            database if type(database) is int else type(database),
            f"must be a database number, from 0 to {_LARGEST_DATABASE}",
        )
    port = given.get("port", 6379)
    if not _is_natural(port) or not 0 < int(port) < 65536:
        # Not shown: where a URL went wrong it may be a part of the password.
        raise ConfigError("port", port if type(port) is int else type(port), "must be a port, from 1 to 65535")
    for option in ("host", "path", "unix_socket_path"):
        if not isinstance(given.get(option), str | None):
            raise ConfigError(option, given[option], "must be a string")
    endpoint = Endpoint(
        host=given.get("host") or "localhost",
        port=int(port),
        database=int(database),
        tls=_tls_context(given) if tls else None,
        path=given.get("path") or given.get("unix_socket_path") or None,
    )
    connect_timeout = given.get("socket_connect_timeout")
    if connect_timeout is None:
        connect_timeout = _CONNECT_TIMEOUT
    elif not _is_seconds(connect_timeout):
        raise ConfigError("socket_connect_timeout", connect_timeout, "must be a positive number of seconds, or None")
    return Target(
        endpoint=endpoint,
        credentials=_credentials(given),
        connect_timeout=min(float(connect_timeout), _LONGEST_TIMEOUT),
    )


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_natural(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and value >= 0) or (
        isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10
    )


def _credentials(given: Mapping[str, Any]) -> Credentials:
    provider = given.get("credential_provider")
    if provider is None:
        for option in ("username", "password"):
            if not isinstance(given.get(option), str | None):
                raise ConfigError(option, type(given[option]), "must be a string")
        return StaticCredentials(given.get("username") or None, given.get("password") or None)

    if not callable(getattr(provider, "get_credentials", None)):
        raise ConfigError("credential_provider", type(provider), "must have the method get_credentials")

    def ask() -> tuple[str | None, str | None]:
        found = tuple(provider.get_credentials())
        return (found[0], found[1]) if len(found) > 1 else (None, found[0])

    return ask


def _tls_context(given: Mapping[str, Any]) -> ssl.SSLContext:
    requirement = given.get("ssl_cert_reqs", "required")
    if isinstance(requirement, str):
        if requirement not in _CERT_REQUIREMENTS:
            raise ConfigError("ssl_cert_reqs", requirement, f"must be one of {', '.join(_CERT_REQUIREMENTS)}")
        requirement = _CERT_REQUIREMENTS[requirement]
    try:
        context = ssl.create_default_context()
        context.check_hostname = requirement != ssl.CERT_NONE and bool(given.get("ssl_check_hostname", True))
        context.verify_mode = requirement or ssl.CERT_NONE
        for flag in given.get("ssl_include_verify_flags") or ():
            context.verify_flags |= flag
        for flag in given.get("ssl_exclude_verify_flags") or ():
            context.verify_flags &= ~flag
        if given.get("ssl_certfile") or given.get("ssl_keyfile"):
            context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"), given.get("ssl_password"))
        authorities = (given.get("ssl_ca_certs"), given.get("ssl_ca_path"), given.get("ssl_ca_data"))
        if any(authorities):
            context.load_verify_locations(*authorities)
        if (minimum := given.get("ssl_min_version")) is not None:
            context.minimum_version = ssl.TLSVersion(minimum)
        if ciphers := given.get("ssl_ciphers"):
            context.set_ciphers(ciphers)
    except (OSError, ValueError, TypeError) as exc:
        raise ConfigError("tls", "ssl_…", f"a TLS option is not usable: {exc}") from exc
    return context


def _check_database_of(url: str, shown: str) -> None:
    """redis-py takes a path that is no number for database 0: events would land in the wrong database."""
    parts = urlsplit(url)
    number = parts.path.strip("/")
    if parts.scheme != "unix" and number and not (number.isascii() and number.isdecimal()):
        raise ConfigError("url", shown, f"the database must be a number; {_EXPECTED}")


def _without_login(url: str) -> str:
    """The URL as it may be shown: neither user nor password (people mix them up), nor options, in any spelling."""
    scheme, separator, rest = url.partition("://")
    _, at, rest = rest.rpartition("@")
    host, question, _ = rest.partition("?")
    if not at and host.count(":") > 1 and not host.startswith("["):
        host = "…"  # a password whose @ was forgotten
    return f"{scheme}{separator}{'…@' if at else ''}{host}{'?…' if question else ''}"
