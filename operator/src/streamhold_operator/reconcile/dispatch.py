"""One pass over one key, whatever its kind: run it, say how it ended, decide when it is looked at again.

The only place where an error of a pass ends: a refusal becomes the status; an API server that is away or has moved
on, or a fault of our own, becomes another try after a growing delay. Nothing is lost and nothing runs hot.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from streamhold_operator.adapters.kube import ApiError, ApiUnavailable
from streamhold_operator.api import InvalidObject
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.outcome import Outcome, Refusal
from streamhold_operator.reconcile import client, connection, lease, topic
from streamhold_operator.reconcile.base import DONE, GRACE, Again, Context, Vanished, not_ready, publish
from streamhold_operator.reconcile.sessions import LOST
from streamhold_operator.store import CLIENT, CONNECTION, LEASE, TOPIC, Key, Raw

logger = logging.getLogger("streamhold_operator.reconcile")

_PASSES: Mapping[str, Callable[[Context, Key], Awaitable[Again]]] = {
    CONNECTION: connection.reconcile,
    TOPIC: topic.reconcile,
    LEASE: lease.reconcile,
    CLIENT: client.reconcile,
}
_SOON_AFTER_CONFLICT = 0.1
_UNDECIDED = (Reason.PROGRESSING, Reason.TOPIC_NOT_READY, Reason.LEASE_POLICY_NOT_READY)
PATIENCE = 5.0
"""Seconds for which what waits for a neighbour that is about to be looked at says nothing of it."""


async def work(context: Context, key: Key) -> None:
    """Look at one object; never raises but for cancellation."""
    started = context.now()
    result = "done"
    try:
        again = await _guarded(context, key)
        result = "failed" if again.failed else "done"
    except ApiError as exc:
        result, again = "api_error", Again(_SOON_AFTER_CONFLICT if exc.status == 409 else None, failed=True)
        level = logging.DEBUG if exc.status == 409 or exc.namespace_ends else logging.WARNING
        logger.log(level, "%s: %s; trying again", key, exc)
    except ApiUnavailable as exc:
        result, again = "api_unavailable", Again(failed=True)
        logger.warning("%s: the API server did not answer (%s); trying again", key, exc)
    except Exception:
        result, again = "internal_error", Again(failed=True)
        logger.exception("%s: this pass failed by a fault of the operator; trying again", key)
    context.metrics.reconciles.labels(key.kind, result).inc()
    context.metrics.duration.labels(key.kind).observe(context.now() - started)
    _schedule(context, key, again)


def _schedule(context: Context, key: Key, again: Again) -> None:
    if context.store.get(key) is None:
        context.undecided_since.pop(key, None)
    if again.failed:
        context.queue.retry(key, at_least=again.after or 0.0)
        return
    if context.store.get(key) is None:
        context.queue.backlog.drop(key)
    context.queue.backlog.forget(key)
    if again.after is not None:
        context.queue.add_later(key, again.after)


async def _guarded(context: Context, key: Key) -> Again:
    raw = context.store.get(key)
    if raw is not None and context.store.terminating(key.namespace) and not raw["metadata"].get("deletionTimestamp"):
        return DONE  # its own deletion comes next
    try:
        again = await _PASSES[key.kind](context, key)
        context.undecided_since.pop(key, None)
        return again
    except Vanished:
        return DONE  # the watch tells of its end, or the comparison
    except Refusal as refusal:
        return await _refused(context, key, refusal)
    except InvalidObject as exc:
        message = f"{exc}; correct the object, or install the CRDs of this operator's version"
        return await _refused(context, key, Refusal(Reason.INTERNAL_ERROR, message))


async def _refused(context: Context, key: Key, refusal: Refusal) -> Again:
    """Say in the status what stands in the way."""
    raw = context.store.get(key)
    if raw is None:
        return DONE if refusal.retry_after is None else Again(refusal.retry_after, failed=True)
    refusal = _as_told_by_a_user(context, key, refusal)
    if refusal.reason in _UNDECIDED and refusal.retry_after is not None:
        if context.now() - context.undecided_since.setdefault(key, context.now()) < PATIENCE:
            return Again(failed=True)
    else:
        context.undecided_since.pop(key, None)
    rest = _rest_of_grace(context, key, raw, refusal)
    if rest is not None:
        return Again(rest)
    outcome = Outcome.refused(refusal, status=_kept(raw))
    await publish(context, key, raw, outcome, generation=raw["metadata"]["generation"])
    if refusal.retry_after is None:
        # What would clear it may be nothing that is watched: a Secret that a user named, for one.
        return Again(context.settings.resync_interval)
    return Again(refusal.retry_after, failed=True)


def _as_told_by_a_user(context: Context, key: Key, refusal: Refusal) -> Refusal:
    """Return what an object says of a connection that was lost, or suspended, under its hands."""
    reference = context.store.connection_of(key)
    if reference is None or key == reference or refusal.reason not in (*LOST, Reason.SUSPENDED):
        return refusal
    return not_ready(f"{reference.namespace}/{reference.name}", refusal)


def _rest_of_grace(context: Context, key: Key, raw: Raw, refusal: Refusal) -> float | None:
    """Return how long what is Ready may still say so, though its connection is away since a moment ago."""
    if refusal.reason not in (Reason.CONNECTION_NOT_READY, Reason.UNREACHABLE, Reason.LOADING):
        return None
    status = raw.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
    reference = context.store.connection_of(key)
    session = context.sessions.get(reference) if reference is not None else None
    if not ready or status.get("observedGeneration") != raw["metadata"]["generation"] or session is None:
        return None
    if session.refusal is None or session.refusal.reason == Reason.SUSPENDED:
        return None
    rest = GRACE if session.down_since is None else session.down_since + GRACE - context.now()
    return rest if rest > 0 else None


def _kept(raw: Raw) -> Mapping[str, object]:
    """Return what the status says besides conditions: a refusal takes nothing back that is still in Redis."""
    status = raw.get("status") or {}
    return {name: value for name, value in status.items() if name not in ("conditions", "observedGeneration")}
