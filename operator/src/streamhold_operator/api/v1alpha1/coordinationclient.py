"""CoordinationClient: who may use which topics and leases; it yields an ACL user and a binding Secret."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from streamhold_operator.api import duration
from streamhold_operator.api.base import ConnectionRef, KubeModel, KubeObject, Status
from streamhold_operator.api.fields import (
    LABEL_KEYS,
    UNRESERVED_KEYS,
    AclUsername,
    LabelValue,
    NamespaceName,
    ObjectName,
    RotationEvery,
    RotationOverlap,
    SecretKey,
    is_duration,
)
from streamhold_operator.api.markers import LIST_ATOMIC, LIST_SET, Cel, immutable, rules

DEFAULT_OVERLAP_MS = 3_600_000

# `namespace` is a reserved word of CEL, which the API server escapes.
_SAME_REFERENCE = (
    "one.name == other.name && (has(one.__namespace__) ? one.__namespace__ : '')"
    " == (has(other.__namespace__) ? other.__namespace__ : '')"
)
_DISTINCT = f"self.all(one, self.exists_one(other, {_SAME_REFERENCE}))"


class Access(StrEnum):
    """What a client may do with a topic."""

    PUBLISH = "Publish"
    CONSUME = "Consume"
    MANAGE = "Manage"


class ClientDeletion(StrEnum):
    """What becomes of the ACL user when the object is deleted."""

    DELETE = "Delete"


class TopicGrant(KubeModel):
    """What the client may do with one StreamTopic."""

    name: ObjectName
    """Name of the StreamTopic."""
    namespace: NamespaceName | None = None
    """Its namespace; the client's own when left out. Another one must be allowed by the topic's allowedNamespaces."""
    access: Annotated[tuple[Access, ...], LIST_SET, Field(min_length=1, max_length=3)]
    """Publish, Consume, Manage (delete, trim, inspect)."""

    def namespace_from(self, own: str) -> str:
        """The namespace of the topic, seen from a client in namespace `own`."""
        return self.namespace or own


class LeaseGrant(KubeModel):
    """One LeasePolicy whose leases the client may hold."""

    name: ObjectName
    """Name of the LeasePolicy."""
    namespace: NamespaceName | None = None
    """Its namespace; the client's own when left out. Another one must be allowed by the policy's allowedNamespaces."""

    def namespace_from(self, own: str) -> str:
        """The namespace of the policy, seen from a client in namespace `own`."""
        return self.namespace or own


class SecretTemplate(KubeModel):
    """What the binding Secret carries besides the operator's own labels."""

    labels: Annotated[Mapping[str, LabelValue], Field(max_length=32), LABEL_KEYS, UNRESERVED_KEYS] = {}
    """Labels to add."""
    annotations: Annotated[
        Mapping[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32), LABEL_KEYS, UNRESERVED_KEYS
    ] = {}
    """Annotations to add."""


class PasswordSecretRef(KubeModel):
    """A Secret of the same namespace with the password to use."""

    name: ObjectName
    """Name of the Secret."""
    key: SecretKey | None = None
    """Entry with the password; `password` when left out."""

    @property
    def effective_key(self) -> str:
        """The entry with the password."""
        return self.key or "password"


class Rotation(KubeModel):
    """When the operator gives the client a new password."""

    model_config = rules(
        Cel(
            f"(has(self.overlap) && {is_duration('self.overlap')} && {is_duration('self.every')})"
            " ? duration(self.overlap) < duration(self.every) : true",
            "overlap must be shorter than every, so that at most two passwords are valid at a time",
        )
    )

    every: RotationEvery
    """How often."""
    overlap: RotationOverlap | None = None
    """How long the old password stays valid beside the new one; the smaller of 1h and half of every when left out."""

    @property
    def every_ms(self) -> int:
        """How often, in milliseconds."""
        return duration.to_ms(self.every)

    @property
    def overlap_ms(self) -> int:
        """How long the old password stays valid, in milliseconds."""
        if self.overlap is None:
            return min(DEFAULT_OVERLAP_MS, self.every_ms // 2)
        return duration.to_ms(self.overlap)


class CoordinationClientSpec(KubeModel):
    """Desired rights of one client."""

    model_config = rules(
        Cel(
            "self.connectionRef == oldSelf.connectionRef",
            "connectionRef is immutable: delete the object and create it again to change it",
        ),
        immutable("username"),
        Cel(
            "!has(self.passwordSecretRef) || !has(self.rotation)",
            "rotation and passwordSecretRef exclude each other: rotate a password of your own by changing its Secret",
        ),
    )

    connection_ref: ConnectionRef
    """The connection; immutable."""
    topics: Annotated[
        tuple[TopicGrant, ...],
        LIST_ATOMIC,
        Field(max_length=128),
        Cel(_DISTINCT, "names a topic twice: write each name and namespace once, with all of its access"),
    ] = ()
    """The topics the client may use."""
    leases: Annotated[
        tuple[LeaseGrant, ...],
        LIST_ATOMIC,
        Field(max_length=128),
        Cel(_DISTINCT, "names a lease policy twice: write each name and namespace once"),
    ] = ()
    """The lease policies whose leases the client may hold."""
    username: AclUsername | None = None
    """The ACL user; <namespace>.<name> when left out. Immutable."""
    secret_name: ObjectName | None = None
    """The binding Secret; <name>-streamhold when left out."""
    secret_template: SecretTemplate = SecretTemplate()
    """What the binding Secret carries besides."""
    password_secret_ref: PasswordSecretRef | None = None
    """A password of your own instead of a generated one."""
    rotation: Rotation | None = None
    """When to make a new password; never when left out."""
    deletion_policy: ClientDeletion = ClientDeletion.DELETE
    """Delete: the ACL user goes with the object. There is no other choice: without an owner it would stay for ever."""
    suspend: bool = False
    """True: the operator leaves the user and the Secret as they are."""

    def effective_username(self, namespace: str, name: str) -> str:
        """The ACL user of the object with that namespace and name."""
        return self.username or f"{namespace}.{name}"

    def effective_secret_name(self, name: str) -> str:
        """The binding Secret of the object with that name."""
        return self.secret_name or f"{name}-streamhold"


class Binding(KubeModel):
    """The Secret to mount."""

    name: Annotated[str, Field(max_length=253)]
    """Name of the binding Secret."""


class CoordinationClientStatus(Status):
    """What the operator did."""

    binding: Binding | None = None
    """The binding Secret; this makes the object a Provisioned Service of servicebinding.io."""
    username: Annotated[str, Field(max_length=512)] | None = None
    """The ACL user."""


class CoordinationClient(KubeObject):
    """Who may use which topics and leases; it yields an ACL user and a binding Secret to mount."""

    model_config = rules(
        Cel(
            "size(self.metadata.name) <= 63",
            "metadata.name must have at most 63 characters: it becomes a label of the binding Secret",
        ),
        Cel(
            "!has(self.spec.passwordSecretRef) || self.spec.passwordSecretRef.name"
            " != (has(self.spec.secretName) ? self.spec.secretName : self.metadata.name + '-streamhold')",
            "passwordSecretRef must name another Secret than the binding (secretName, or <name>-streamhold)",
        ),
    )

    KIND: ClassVar[str] = "CoordinationClient"
    PLURAL: ClassVar[str] = "coordinationclients"

    spec: CoordinationClientSpec
    status: CoordinationClientStatus = CoordinationClientStatus()
