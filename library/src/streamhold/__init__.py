"""Durable pub/sub, leases and signals on the Redis you already run.

    import streamhold

    async with streamhold.connect() as hub:  # the mounted binding; or connect("redis://…")
        await hub.publish("orders", {"type": "order.created", "data": {"id": 7}, "runId": "r-1"})
        async with hub.messages("orders", group="billing") as messages:
            async for message in messages:
                async with message.process():  # ack on success, nack on an exception
                    await bill(message.event)

What a module promises is what its `__all__` lists; names that start with an underscore are ours.
"""

from streamhold._backends.inprocess.server import InProcessServer
from streamhold._hub import EventEmitterPubSub, InProcessPubSub, RedisStreamsPubSub, connect
from streamhold._lease import FenceGate, Lease, NoopLeaseProvider, hold_lease, lease_provider_of
from streamhold._messages import Message, Messages
from streamhold.errors import (
    AccessNotGranted,
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    BindingError,
    ConfigError,
    FenceRejected,
    HubClosed,
    LeaseError,
    LeaseHeld,
    LeaseLost,
    LeaseNotDeclared,
    LeaseUnavailable,
    OutcomeUnknown,
    PermissionRefused,
    PublishError,
    PublishOutcomeUnknown,
    ServerFull,
    StreamholdError,
    TopicNotDeclared,
    WrongKeyType,
)
from streamhold.types import Callback, Event, EventMembers, LeaseGrant, LeaseProvider, PubSub, Settle, StartFrom

__all__ = [
    "AccessNotGranted",
    "AuthenticationFailed",
    "BackendError",
    "BackendUnavailable",
    "BindingError",
    "Callback",
    "ConfigError",
    "Event",
    "EventEmitterPubSub",
    "EventMembers",
    "FenceGate",
    "FenceRejected",
    "HubClosed",
    "InProcessPubSub",
    "InProcessServer",
    "Lease",
    "LeaseError",
    "LeaseGrant",
    "LeaseHeld",
    "LeaseLost",
    "LeaseNotDeclared",
    "LeaseProvider",
    "LeaseUnavailable",
    "Message",
    "Messages",
    "NoopLeaseProvider",
    "OutcomeUnknown",
    "PermissionRefused",
    "PubSub",
    "PublishError",
    "PublishOutcomeUnknown",
    "RedisStreamsPubSub",
    "ServerFull",
    "Settle",
    "StartFrom",
    "StreamholdError",
    "TopicNotDeclared",
    "WrongKeyType",
    "connect",
    "hold_lease",
    "lease_provider_of",
]
