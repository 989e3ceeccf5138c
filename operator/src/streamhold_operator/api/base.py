"""What all kinds share: metadata, references, namespaces allowed, conditions.

Models are data: frozen, camelCase outside and snake_case inside, no I/O. A field's default here is the operator's
default; the generated schema does not carry it. Unknown members are ignored, so that an older operator reads newer
objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from streamhold_operator.api.fields import LABEL_KEYS, LabelValue, NamespaceName, ObjectName, QualifiedName, SecretKey
from streamhold_operator.api.markers import LIST_ATOMIC, LIST_SET, Cel, list_map, rules

GROUP = "streamhold.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FINALIZER = f"{GROUP}/cleanup"
RECONCILE_ANNOTATION = f"{GROUP}/reconcile"
"""Any change of this annotation forces a pass."""


class KubeModel(BaseModel):
    """Base of everything in a custom resource."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )

    def to_dict(self) -> dict[str, Any]:
        """As the API server has it: camelCase, without what is unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ObjectMeta(KubeModel):
    """The metadata the operator reads."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}

    @property
    def is_deleting(self) -> bool:
        """Whether somebody asked for the object to be deleted."""
        return self.deletion_timestamp is not None


class ConnectionRef(KubeModel):
    """Which RedisConnection to use."""

    name: ObjectName
    """Name of the RedisConnection."""
    namespace: NamespaceName | None = None
    """Its namespace; the object's own when left out. Another one must be in the connection's allowedNamespaces."""

    def namespace_from(self, own: str) -> str:
        """The namespace of the connection, seen from an object in namespace `own`."""
        return self.namespace or own


class CredentialsSecretRef(KubeModel):
    """A Secret of the same namespace with a user name and a password."""

    name: ObjectName
    """Name of the Secret."""
    username_key: SecretKey | None = None
    """Entry with the user name; `username` when left out, and the user `default` when the Secret has no such entry."""
    password_key: SecretKey | None = None
    """Entry with the password; `password` when left out."""

    @property
    def effective_username_key(self) -> str:
        """The entry with the user name. It may be missing in the Secret only when the spec does not name it."""
        return self.username_key or "username"

    @property
    def effective_password_key(self) -> str:
        """The entry with the password."""
        return self.password_key or "password"


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class SelectorRequirement(KubeModel):
    """One requirement on a label of a namespace."""

    model_config = rules(
        Cel(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "operators In and NotIn need values; Exists and DoesNotExist have none",
        )
    )

    key: QualifiedName
    """The label."""
    operator: SelectorOperator
    """In, NotIn, Exists or DoesNotExist."""
    values: Annotated[tuple[LabelValue, ...], LIST_SET, Field(max_length=32)] = ()
    """The values, for In and NotIn."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the requirement (as Kubernetes does: NotIn is met by a missing label)."""
        match self.operator:
            case SelectorOperator.IN:
                return labels.get(self.key) in self.values
            case SelectorOperator.NOT_IN:
                return labels.get(self.key) not in self.values
            case SelectorOperator.EXISTS:
                return self.key in labels
            case SelectorOperator.DOES_NOT_EXIST:
                return self.key not in labels


class NamespaceSelector(KubeModel):
    """Selects namespaces by their labels; all requirements must be met."""

    model_config = rules(
        Cel(
            "(has(self.matchLabels) && size(self.matchLabels) > 0)"
            " || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
            "needs matchLabels or matchExpressions; for every namespace write from: All instead",
        )
    )

    match_labels: Annotated[Mapping[str, LabelValue], Field(max_length=32), LABEL_KEYS] = {}
    """Labels with exactly these values."""
    match_expressions: Annotated[tuple[SelectorRequirement, ...], LIST_ATOMIC, Field(max_length=32)] = ()
    """Further requirements."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a namespace with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


class AllowedFrom(StrEnum):
    """Where references may come from."""

    SAME = "Same"
    ALL = "All"
    SELECTOR = "Selector"


class AllowedNamespaces(KubeModel):
    """From which namespaces the object may be used."""

    model_config = rules(
        Cel(
            "(has(self.from) && self.from == 'Selector') == has(self.selector)",
            "selector belongs to from: Selector, which needs it; from: Same and from: All have none",
        )
    )

    from_: Annotated[AllowedFrom, Field(alias="from")] = AllowedFrom.SAME
    """Same (the object's own namespace; the default), All, or Selector."""
    selector: NamespaceSelector | None = None
    """Which namespaces, for from: Selector."""

    def allows(self, own: str, other: str, labels: Mapping[str, str]) -> bool:
        """Whether an object in namespace `own` may be used from namespace `other`, which has these labels."""
        if own == other or self.from_ is AllowedFrom.ALL:
            return True
        return self.from_ is AllowedFrom.SELECTOR and self.selector is not None and self.selector.matches(labels)


class Condition(KubeModel):
    """One observation about the object, in the usual form of Kubernetes."""

    type: Annotated[str, Field(max_length=316)]
    """Ready, Reconciling or Stalled."""
    status: Annotated[str, Field(json_schema_extra={"enum": ["True", "False", "Unknown"]})]
    """True, False or Unknown."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, as one word."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, and what to do, as a sentence."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When the status of this condition last changed."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the spec that this was said about."""


class Status(KubeModel):
    """What every status has."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the spec that this status is about."""
    conditions: Annotated[tuple[Condition, ...], list_map("type"), Field(max_length=16)] = ()
    """Ready always; Reconciling and Stalled only while they are true."""


class InvalidObject(ValueError):
    """An object that the models cannot read, as only an older or foreign CRD lets through."""

    def __init__(self, kind: str, namespace: str, name: str, problems: str) -> None:
        super().__init__(f"{kind} {namespace}/{name} cannot be read: {problems}")
        self.kind = kind
        self.namespace = namespace
        self.name = name


class KubeObject(KubeModel):
    """Base of the four kinds."""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]

    metadata: ObjectMeta

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read an object as the API server sends it.

        Raises:
            InvalidObject: a member has a value that the CRD of this version refuses; the message names it.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            metadata = raw.get("metadata") or {}
            problems = "; ".join(
                f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors()
            )
            raise InvalidObject(cls.KIND, metadata.get("namespace", ""), metadata.get("name", ""), problems) from error
