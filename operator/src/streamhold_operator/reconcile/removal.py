"""Deletion that must reach Redis, and must end whatever is missing.

Redis usable: cleaned up, then released. Connection or its Secret gone: released at once. Redis away: released after the
connection's `unreachableDeletion.after` (or never, with `then: Block`), and within seconds when the whole namespace
is being deleted. Whatever is left behind in Redis is told in an `Orphaned` event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from streamhold_operator.adapters.kube import FINALIZER
from streamhold_operator.api import RedisConnection
from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.redisconnection import Unreachable
from streamhold_operator.domain.outcome import Outcome, Refusal
from streamhold_operator.reconcile.base import DONE, Again, Context, keep_finalizer, publish, tell
from streamhold_operator.reconcile.sessions import LOST, Session
from streamhold_operator.store import Key, Raw

NAMESPACE_PATIENCE = 5.0
"""Seconds that the deletion of a namespace waits for a Redis that is away."""
ANSWERING = (Reason.SERVER_REFUSED, Reason.MISSING_RIGHTS)
"""Why a connection is not usable though its server answers: cleaning up may be just what a full one still takes."""
_LOOK = 2.0
_SOON = 0.5
_AT_ONCE = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is to be done in Redis before an object may go."""

    what: str
    """For messages: what is left behind otherwise."""
    remove: Callable[[RedisConnection, Session], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Obstacle:
    why: str
    patience: float | None
    """Seconds to wait, from when the deletion was asked for; None: for ever."""


async def finish(context: Context, key: Key, raw: Raw, removal: Removal) -> Again:
    """Clean up in Redis and release the object, or say what is waited for."""
    if FINALIZER not in (raw["metadata"].get("finalizers") or ()):
        return DONE
    reference = context.store.connection_of(key)
    assert reference is not None  # the schema requires connectionRef
    if context.sessions.get(reference) is None and context.store.get(reference) is not None:
        context.wake([reference])
        return Again(_SOON)
    orphaned: str | None = None
    obstacle = await _try(context, reference, removal)
    if obstacle is not None:
        patience = obstacle.patience
        if context.store.terminating(key.namespace):
            patience = min(NAMESPACE_PATIENCE, NAMESPACE_PATIENCE if patience is None else patience)
        waited = context.seconds_since(raw["metadata"]["deletionTimestamp"])
        if patience is None or waited < patience:
            return await _wait(context, key, raw, removal, obstacle.why, patience, waited)
        orphaned = f"Deleted without Redis: {obstacle.why}; {removal.what} is left behind there, if it was ever made"
    await keep_finalizer(context, raw, wanted=False)
    if orphaned is not None:  # told last: what was refused to be released is tried again, and told once
        await tell(context, raw, Reason.ORPHANED, orphaned, type_="Warning")
    context.warned.pop(key, None)
    return DONE


async def _try(context: Context, reference: Key, removal: Removal) -> _Obstacle | None:
    """Clean up; return what stands in the way, if anything does."""
    at = f"RedisConnection {reference.namespace}/{reference.name}"
    session = context.sessions.get(reference)
    gone = context.store.get(reference) is None
    if session is None:
        return _Obstacle(f"{at} is gone", _AT_ONCE)
    refusal = session.refusal
    secret_gone = refusal is not None and refusal.reason == Reason.SECRET_NOT_FOUND
    answers = session.usable or (refusal is not None and refusal.reason in ANSWERING)
    if session.connection is not None and session.admin is not None and (answers or gone or secret_gone):
        try:
            await removal.remove(session.connection, session)
            return None
        except Refusal as caught:
            refusal = caught
    if gone:
        return _Obstacle(f"{at} is gone", _AT_ONCE)
    why = f"{at} is not ready ({refusal.reason if refusal is not None else Reason.UNREACHABLE})"
    if secret_gone:
        return _Obstacle(f"{why}: its Secret is gone", _AT_ONCE)
    if refusal is not None and refusal.reason not in LOST and answers:
        why = f"{at} refused: {refusal.message}"
    return _Obstacle(why, _patience(session.connection))


def _patience(connection: RedisConnection | None) -> float | None:
    if connection is None:
        return None
    rule = connection.spec.unreachable_deletion
    return None if rule.then is Unreachable.BLOCK else rule.after_ms / 1000


async def _wait(
    context: Context, key: Key, raw: Raw, removal: Removal, why: str, patience: float | None, waited: float
) -> Again:
    end = "until it can be cleaned up" if patience is None else f"for at most {patience:g} s"
    outcome = Outcome(
        ready=False,
        reason=Reason.CONNECTION_NOT_READY,
        message=f"Being deleted: {why}, so {removal.what} cannot be removed; this waits {end}",
        status={
            name: value
            for name, value in (raw.get("status") or {}).items()
            if name not in ("conditions", "observedGeneration")
        },
    )
    await publish(context, key, raw, outcome, generation=raw["metadata"]["generation"])
    return Again(_LOOK if patience is None else min(_LOOK, max(0.05, patience - waited)))
