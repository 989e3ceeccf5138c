"""The list of kinds, and reading an object by the name of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhold_operator.api.v1alpha1.coordinationclient import CoordinationClient
from streamhold_operator.api.v1alpha1.leasepolicy import LeasePolicy
from streamhold_operator.api.v1alpha1.redisconnection import RedisConnection
from streamhold_operator.api.v1alpha1.streamtopic import StreamTopic

AnyObject = RedisConnection | StreamTopic | LeasePolicy | CoordinationClient

KINDS: Mapping[str, type[AnyObject]] = {
    model.KIND: model for model in (RedisConnection, StreamTopic, LeasePolicy, CoordinationClient)
}


def parse(kind: str, raw: Mapping[str, Any]) -> AnyObject:
    """Read an object of that kind as the API server sends it (items of a list do not carry their kind).

    Raises:
        InvalidObject: a member has a value that the CRD of this version refuses.
        KeyError: the kind is none of ours.
    """
    return KINDS[kind].parse(raw)
