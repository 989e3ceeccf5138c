"""The custom resources: models, their reading, and the generation of the CRDs from them."""

from streamhold_operator.api.base import (
    API_VERSION,
    FINALIZER,
    GROUP,
    RECONCILE_ANNOTATION,
    VERSION,
    InvalidObject,
    KubeObject,
)
from streamhold_operator.api.v1alpha1 import (
    KINDS,
    AnyObject,
    CoordinationClient,
    LeasePolicy,
    RedisConnection,
    StreamTopic,
    parse,
)

__all__ = [
    "API_VERSION",
    "FINALIZER",
    "GROUP",
    "KINDS",
    "RECONCILE_ANNOTATION",
    "VERSION",
    "AnyObject",
    "CoordinationClient",
    "InvalidObject",
    "KubeObject",
    "LeasePolicy",
    "RedisConnection",
    "StreamTopic",
    "parse",
]
