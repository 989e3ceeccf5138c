"""RedisConnection: where a Redis or Valkey is, how to log in, and who may use it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from streamhold_operator.api import duration
from streamhold_operator.api.base import AllowedNamespaces, CredentialsSecretRef, KubeModel, KubeObject, Status
from streamhold_operator.api.fields import (
    DeletionWait,
    Endpoint,
    KeyPrefix,
    MasterName,
    ObjectName,
    SecretKey,
    ServerName,
)
from streamhold_operator.api.markers import LIST_SET, Cel, immutable, rules

DEFAULT_KEY_PREFIX = "streamhold:{namespace}"


class Topology(StrEnum):
    """How the servers work together."""

    STANDALONE = "Standalone"
    SENTINEL = "Sentinel"
    CLUSTER = "Cluster"


class AccessMode(StrEnum):
    """Whether the operator creates an ACL user per client."""

    MANAGED = "Managed"
    SHARED = "Shared"


class Unreachable(StrEnum):
    """What becomes of a deleted object whose Redis stays unreachable."""

    ORPHAN = "Orphan"
    BLOCK = "Block"


class Sentinel(KubeModel):
    """How to ask Sentinel for the master."""

    master_name: MasterName
    """The name that Sentinel knows the master by."""
    auth_secret_ref: CredentialsSecretRef | None = None
    """Login to the Sentinels themselves, where they ask for one."""


class CaSecretRef(KubeModel):
    """A Secret of the same namespace with the certificates of the authorities to trust."""

    name: ObjectName
    """Name of the Secret."""
    key: SecretKey | None = None
    """Entry with the PEM text; `ca.crt` when left out."""

    @property
    def effective_key(self) -> str:
        """The entry with the PEM text."""
        return self.key or "ca.crt"


class ClientCertSecretRef(KubeModel):
    """A Secret of the same namespace, of the type kubernetes.io/tls, with the certificate to present."""

    name: ObjectName
    """Name of the Secret; its entries are tls.crt and tls.key."""


class Tls(KubeModel):
    """TLS to the servers; an empty object turns it on with the system's authorities."""

    ca_secret_ref: CaSecretRef | None = None
    """The authorities to trust instead of the system's."""
    client_cert_secret_ref: ClientCertSecretRef | None = None
    """The certificate to present (mutual TLS)."""
    server_name: ServerName | None = None
    """The name to look for in the server's certificate, where it is not the host of the endpoint."""


class UnreachableDeletion(KubeModel):
    """What becomes of deleted objects while Redis cannot be reached."""

    after: DeletionWait = "10m"
    """How long to wait for Redis before `then` applies."""
    then: Unreachable = Unreachable.ORPHAN
    """Orphan (let the object go and leave its data; the default) or Block (wait for ever)."""

    @property
    def after_ms(self) -> int:
        """The wait in milliseconds."""
        return duration.to_ms(self.after)


class RedisConnectionSpec(KubeModel):
    """Where Redis is, how to log in, and who may use it."""

    model_config = rules(
        immutable("keyPrefix"),
        Cel(
            "(has(self.topology) && self.topology != 'Standalone') || size(self.endpoints) == 1",
            "topology Standalone has exactly one endpoint; several belong to topology Sentinel or Cluster",
        ),
        Cel(
            "(has(self.topology) && self.topology == 'Sentinel') == has(self.sentinel)",
            "sentinel belongs to topology Sentinel, which needs it; the other topologies have none",
        ),
        Cel(
            "!has(self.topology) || self.topology != 'Cluster' || !has(self.database) || self.database == 0",
            "topology Cluster has only database 0",
        ),
        Cel(
            "(has(self.access) && self.access == 'Shared') == has(self.sharedSecretRef)",
            "sharedSecretRef belongs to access Shared, which needs it; access Managed has none",
        ),
    )

    topology: Topology = Topology.STANDALONE
    """Standalone (the default), Sentinel or Cluster."""
    endpoints: Annotated[tuple[Endpoint, ...], LIST_SET, Field(min_length=1, max_length=64)]
    """host:port of the server; with Sentinel those of the Sentinels, with Cluster those of some nodes."""
    database: Annotated[int, Field(ge=0, le=65535)] = 0
    """The numbered database; 0 when left out."""
    sentinel: Sentinel | None = None
    """For topology Sentinel."""
    tls: Tls | None = None
    """Present: the servers are spoken to with TLS."""
    admin_secret_ref: CredentialsSecretRef | None = None
    """Login of the operator; without it the operator uses sharedSecretRef, or does not log in at all."""
    access: AccessMode = AccessMode.MANAGED
    """Managed (an ACL user for each client; the default) or Shared (for servers that forbid ACL commands)."""
    shared_secret_ref: CredentialsSecretRef | None = None
    """The login that every client gets, for access Shared."""
    key_prefix: KeyPrefix | None = None
    """Begins every key; {namespace} stands for the namespace of the object that uses the connection. Default
    streamhold:{namespace}."""
    allowed_namespaces: AllowedNamespaces = AllowedNamespaces()
    """Who may refer to this connection; its own namespace when left out."""
    unreachable_deletion: UnreachableDeletion = UnreachableDeletion()
    """What becomes of deleted topics and clients while Redis cannot be reached."""
    suspend: bool = False
    """True: the operator does nothing for this connection and for what uses it."""

    def effective_key_prefix(self, namespace: str) -> str:
        """The key prefix for objects of that namespace."""
        return (self.key_prefix or DEFAULT_KEY_PREFIX).replace("{namespace}", namespace)


class Server(KubeModel):
    """What answered."""

    product: Annotated[str, Field(max_length=64)] = ""
    """Redis, Valkey, or another name that the server gives itself."""
    version: Annotated[str, Field(max_length=64)] = ""
    """Its version."""


class RedisConnectionStatus(Status):
    """What the operator found."""

    server: Server | None = None
    """Product and version of the server."""
    nodes: Annotated[int, Field(ge=0)] | None = None
    """How many nodes there are, replicas included."""
    capabilities: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], LIST_SET, Field(max_length=64)] = ()
    """What the server can do, as probed, sorted."""


class RedisConnection(KubeObject):
    """Where a Redis or Valkey is, how to log in, and who may use it. Streamhold does not deploy it."""

    KIND: ClassVar[str] = "RedisConnection"
    PLURAL: ClassVar[str] = "redisconnections"

    spec: RedisConnectionSpec
    status: RedisConnectionStatus = RedisConnectionStatus()
