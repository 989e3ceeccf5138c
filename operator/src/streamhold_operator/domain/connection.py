"""RedisConnection: what a server must be like to be Ready, and which claims in it are stale."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.redisconnection import Topology
from streamhold_operator.domain.acl import AclAbilities, owner_marker
from streamhold_operator.domain.actions import DeleteUser, RemoveClaim
from streamhold_operator.domain.claims import OwnerRecord, Owners, stale, usernames
from streamhold_operator.domain.outcome import Outcome, Refusal

__all__ = [
    "UNKNOWN",
    "Endpoint",
    "Leftover",
    "ServerFacts",
    "Want",
    "check",
    "conclude",
    "leftover",
    "open_default_user",
    "parse_endpoint",
    "plan",
    "unsupported",
]


UNKNOWN = "unknown"
"""The version of a server that would not tell: then its product is a guess too."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server said of itself. Nothing in it changes while the server runs on."""

    product: str
    """Redis or Valkey."""
    version: str
    run_id: str
    role: str
    """master or slave, as INFO says it; sentinel."""
    mode: str = "standalone"
    """standalone, cluster or sentinel."""
    master: str | None = None
    """host:port of the master, on a replica."""
    abilities: AclAbilities
    acl_file: bool | None = None
    """Whether ACL SAVE keeps users; None: the server would not tell."""
    default_user_open: bool = False
    """Whether anybody gets in without a password."""
    missing_rights: tuple[str, ...] = ()
    """What the admin user may not do and must."""

    def capabilities(self) -> list[str]:
        """Return what the status lists."""
        found = {
            "AclSelectors": self.abilities.selectors,
            "ClientSetInfo": self.abilities.client_setinfo,
            "AclFile": bool(self.acl_file),
        }
        return sorted(name for name, there in found.items() if there)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a RedisConnection says of its server."""

    endpoint: Endpoint
    topology: Topology = Topology.STANDALONE
    username: str | None = None
    """The admin user, for messages."""


def check(want: Want, facts: ServerFacts) -> Refusal | None:
    """Return why a server that answered is not usable; None when it is."""
    at = str(want.endpoint)
    if want.topology is not Topology.STANDALONE:
        return unsupported(want.topology)
    if facts.mode == "cluster":
        return Refusal(
            Reason.WRONG_TOPOLOGY,
            f"{at} runs in Cluster mode but spec.topology is Standalone; name a server outside a Cluster"
            " (Cluster is not supported yet)",
        )
    if facts.mode == "sentinel" or facts.role == "sentinel":
        return Refusal(
            Reason.WRONG_TOPOLOGY,
            f"{at} is a Sentinel, not a Redis, but spec.topology is Standalone; name the master it watches"
            " (Sentinel is not supported yet)",
        )
    if facts.role != "master":
        where = f" of {facts.master}" if facts.master else ""
        return Refusal(
            Reason.READ_ONLY, f"{at} is a replica{where} and refuses writes; name the master in spec.endpoints"
        )
    if facts.missing_rights:
        user = want.username or "default"
        return Refusal(
            Reason.MISSING_RIGHTS,
            f"The user {user!r} at {at} lacks rights that the operator needs: {', '.join(facts.missing_rights)};"
            f" grant them (ACL SETUSER {user} …) or name another user in the Secret of spec.adminSecretRef",
        )
    return None


def unsupported(topology: Topology) -> Refusal:
    """Return the refusal of a topology that is not built yet."""
    return Refusal(
        Reason.TOPOLOGY_NOT_SUPPORTED,
        f"spec.topology {topology.value} is not supported by this version yet; use Standalone with the address of a"
        " master",
    )


def conclude(want: Want, facts: ServerFacts | None, failure: Refusal | None = None) -> Outcome:
    """Return what the status shall say.

    Args:
        want: what was asked for.
        facts: what the server said, if it came to that.
        failure: why it did not, or what `check` found.
    """
    status = {} if facts is None else _status(facts)
    if failure is None and facts is not None:
        failure = check(want, facts)
    if failure is not None:
        return Outcome.refused(failure, status=status)
    if facts is None:
        raise ValueError("either facts or a failure is needed")
    warnings = (open_default_user(want.endpoint),) if facts.default_user_open else ()
    message = f"Logged in to {facts.product} {facts.version} at {want.endpoint}"
    return Outcome(ready=True, reason=Reason.READY, message=message, status=status, warnings=warnings)


def open_default_user(endpoint: Endpoint) -> str:
    """Return the warning about a server that lets anybody in."""
    return (
        f"The default user of {endpoint} is open: whoever reaches the port has its rights without a password, and"
        " grants mean nothing; close it (ACL SETUSER default off, or a requirepass)"
    )


def _status(facts: ServerFacts) -> dict[str, object]:
    server = {} if facts.version == UNKNOWN else {"server": {"product": facts.product, "version": facts.version}}
    return {
        **server,
        "nodes": 1,
        "capabilities": facts.capabilities(),
    }


@dataclass(frozen=True, slots=True)
class Leftover:
    """What an object left in Redis that went while nobody watched, or while Redis was away."""

    users: tuple[DeleteUser, ...]
    """First: a claim is what its user is found by."""
    claim: RemoveClaim


def plan(
    owners: Owners, *, cluster: str, alive: Collection[str], namespaces: Collection[str] | None
) -> tuple[Leftover, ...]:
    """Return what is to be removed since nobody stands behind it any more."""
    gone = stale(owners, cluster=cluster, alive=alive, namespaces=namespaces)
    return tuple(leftover(owners.records[field]) for field in gone)


def leftover(record: OwnerRecord) -> Leftover:
    """Return what the object with this record leaves when it just goes."""
    marker = owner_marker(record.cluster, record.uid)
    users = tuple(DeleteUser(username=name, marker=marker) for name in usernames(record.claims))
    return Leftover(users=users, claim=RemoveClaim(record.field))


def parse_endpoint(text: str) -> Endpoint:
    """Read `host:port`, `[ipv6]:port` or a host alone.

    Raises:
        Refusal: it is none of these.
    """
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, "6379"
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise Refusal(Reason.UNREACHABLE, f"The endpoint {text!r} is not host:port; correct spec.endpoints")
    return Endpoint(host, int(port))
