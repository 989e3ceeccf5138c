"""What every pass shares: the way from an outcome to status, events and the next look."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from streamhold_operator.adapters.kube import FINALIZER, ApiError, Kube
from streamhold_operator.api import RedisConnection
from streamhold_operator.api.base import Condition
from streamhold_operator.api.conditions import Reason, build, find
from streamhold_operator.domain.outcome import Outcome, Refusal
from streamhold_operator.metrics import Metrics
from streamhold_operator.queue import WorkQueue
from streamhold_operator.reconcile.sessions import NOT_TRIED, Session, Sessions
from streamhold_operator.settings import Settings
from streamhold_operator.store import CONNECTION, LEASE, TOPIC, Key, Raw, Store

logger = logging.getLogger("streamhold_operator.reconcile")

GRACE = 15.0
"""Seconds for which what was Ready keeps saying so after its connection was lost: a restart is not news."""


@dataclass(slots=True, kw_only=True)
class Context:
    """What passes work with."""

    settings: Settings
    store: Store
    kube: Kube
    queue: WorkQueue[Key]
    sessions: Sessions
    metrics: Metrics
    cluster: str
    """Id of this cluster in owner records."""
    clock: Callable[[], datetime.datetime]
    """The API server's."""
    now: Callable[[], float] = anyio.current_time
    undecided_since: dict[Key, float] = field(default_factory=dict)
    """Since when objects wait for a neighbour that has not been looked at."""
    warned: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    """The warnings each object's user has heard."""

    def wake(self, keys: Iterable[Key]) -> None:
        """Have the keys looked at soon."""
        for key in keys:
            self.queue.add(key)

    def seconds_since(self, timestamp: str) -> float:
        """Return how long ago an RFC 3339 time was."""
        return (self.clock() - parse_time(timestamp)).total_seconds()


@dataclass(frozen=True, slots=True)
class Again:
    """When to look at an object again though nothing changed."""

    after: float | None = None
    failed: bool = False
    """Count it as a failure: the delay grows from try to try, and `after` is the least."""


DONE = Again()


class Vanished(Exception):
    """The object is gone, or about to go with its namespace: nothing may be made for it any more."""


def parse_time(timestamp: str) -> datetime.datetime:
    """Read a time as the API server writes it."""
    return datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00"))


def connection_for(context: Context, key: Key, reference: Key) -> tuple[RedisConnection, Session]:
    """Return the connection that an object refers to, and its session, when the object may use it and it is usable.

    Raises:
        Refusal: it is not there, must not be used from here, or is not ready.
    """
    raw = context.store.get(reference)
    at = f"{reference.namespace}/{reference.name}"
    if raw is None:
        raise Refusal(Reason.CONNECTION_NOT_FOUND, f"There is no RedisConnection {at}; create it, or correct its name")
    connection = RedisConnection.parse(raw)
    seen = context.store.namespace(key.namespace)
    labels = seen.labels if seen is not None else {}
    if not connection.spec.allowed_namespaces.allows(reference.namespace, key.namespace, labels):
        raise Refusal(
            Reason.CONNECTION_NOT_ALLOWED,
            f"RedisConnection {at} does not allow the namespace {key.namespace}; have its owner list it in"
            " spec.allowedNamespaces, or give the namespace the labels asked for there",
        )
    session = context.sessions.get(reference)
    if session is None or session.refusal is NOT_TRIED:
        raise Refusal(Reason.PROGRESSING, f"RedisConnection {at} has not been tried yet", retry_after=1.0)
    if session.refusal is not None:
        raise not_ready(at, session.refusal)
    return connection, session


def not_ready(at: str, refusal: Refusal) -> Refusal:
    """Return what users of a connection say while it is refused."""
    if refusal.reason == Reason.SUSPENDED:
        return Refusal(Reason.CONNECTION_NOT_READY, f"RedisConnection {at} is suspended (spec.suspend)")
    return Refusal(
        Reason.CONNECTION_NOT_READY,
        f"RedisConnection {at} is not ready ({refusal.reason}); its own status says what to do",
    )


async def publish(context: Context, key: Key, raw: Raw, outcome: Outcome, *, generation: int) -> None:
    """Write the status if it now means something else, and tell transitions, repairs and warnings in events."""
    before = raw.get("status") or {}
    previous = [Condition.model_validate(condition) for condition in before.get("conditions") or ()]
    conditions = build(previous, Reason(outcome.reason), outcome.message, generation=generation, now=context.clock())
    status: dict[str, Any] = {
        "observedGeneration": generation,
        **outcome.status,
        "conditions": [condition.to_dict() for condition in conditions],
    }
    was, now = find(previous, "Ready"), conditions[0]
    transition = was is None or (was.status, was.reason) != (now.status, now.reason)
    if _meaning(status) != _meaning(before):
        context.metrics.api_writes.labels("status").inc()
        try:
            written = await context.kube.apply_status(raw, status)
        except ApiError as exc:
            if exc.status == 404:
                return  # deleted meanwhile: nobody reads its status any more
            raise
        context.wake(context.store.remember(written, ours=True))
        if (was is not None and was.status == "True") != (now.status == "True") or transition:
            context.wake(context.store.users_of(key) if key.kind != CONNECTION else ())
    # A thousand topics applied at once are a thousand status writes, not two thousand writes.
    expected = was is None and outcome.ready and key.kind in (TOPIC, LEASE)
    if transition and not expected and outcome.reason != Reason.PROGRESSING:
        type_ = "Normal" if outcome.ready or outcome.reason == Reason.SUSPENDED else "Warning"
        await tell(context, raw, outcome.reason, outcome.message, type_=type_)
    for repair in outcome.repairs:
        await tell(context, raw, "Repaired", repair)
    await _warn(context, key, raw, outcome.warnings, first=key not in context.warned and not transition)


async def tell(context: Context, raw: Raw, reason: str, message: str, *, type_: str = "Normal") -> None:
    """Record an event and a log line; a namespace that is being deleted takes no events, only the log line stays."""
    metadata = raw["metadata"]
    where = f"{raw['kind']} {metadata['namespace']}/{metadata['name']}"
    level = logging.INFO if type_ == "Normal" else logging.WARNING
    logger.log(level, "%s: %s: %s", where, reason, message)
    # The end of a namespace may be known here a moment later than the end of what is in it.
    if await namespace_ends(context, metadata["namespace"]):
        return
    context.metrics.api_writes.labels("event").inc()
    try:
        await context.kube.create_event(raw, type_=type_, reason=reason, message=message)
    except ApiError as exc:
        if exc.status not in (403, 404):
            raise
        logger.log(
            logging.DEBUG if exc.namespace_ends else logging.WARNING,
            "%s: the event %s could not be recorded: %s",
            where,
            reason,
            exc.message,
        )


async def keep_finalizer(context: Context, raw: Raw, *, wanted: bool) -> Raw:
    """Have our finalizer on the object, or not; return the object as it is then.

    Raises:
        Vanished: it was wanted, and there is no such object any more.
    """
    if (FINALIZER in (raw["metadata"].get("finalizers") or ())) == wanted:
        return raw
    context.metrics.api_writes.labels("finalizer").inc()
    written = await context.kube.set_finalizer(raw, wanted=wanted)
    if written is None:
        if wanted:
            raise Vanished
        return raw
    if not (written["metadata"].get("deletionTimestamp") and not written["metadata"].get("finalizers")):
        context.wake(context.store.remember(written, ours=True))
    return written


async def namespace_ends(context: Context, namespace: str) -> bool:
    """Whether nothing can be created in the namespace any more; asked anew, before something is."""
    if context.store.terminating(namespace):
        return True
    found = await context.kube.get("Namespace", None, namespace)
    return found is None or bool(found["metadata"].get("deletionTimestamp"))


async def _warn(context: Context, key: Key, raw: Raw, warnings: tuple[str, ...], *, first: bool) -> None:
    """Tell the warnings that are new; those that a restarted operator finds again were told by the last one."""
    told, context.warned[key] = context.warned.get(key, ()), warnings
    if not first:
        for warning in warnings:
            if warning not in told:
                await tell(context, raw, "Warning", warning, type_="Warning")


def _meaning(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status without what does not matter: times of transitions, and empty members."""
    plain = {name: value for name, value in status.items() if value not in ([], {}, None, "")}
    plain["conditions"] = sorted(
        (
            {name: value for name, value in condition.items() if name != "lastTransitionTime"}
            for condition in status.get("conditions") or ()
        ),
        key=lambda condition: str(condition.get("type")),
    )
    return plain
