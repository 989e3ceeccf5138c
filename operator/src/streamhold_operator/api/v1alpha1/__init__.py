"""The four kinds of version v1alpha1."""

from streamhold_operator.api.v1alpha1._kinds import KINDS, AnyObject, parse
from streamhold_operator.api.v1alpha1.coordinationclient import CoordinationClient
from streamhold_operator.api.v1alpha1.leasepolicy import LeasePolicy
from streamhold_operator.api.v1alpha1.redisconnection import RedisConnection
from streamhold_operator.api.v1alpha1.streamtopic import StreamTopic

__all__ = ["KINDS", "AnyObject", "CoordinationClient", "LeasePolicy", "RedisConnection", "StreamTopic", "parse"]
