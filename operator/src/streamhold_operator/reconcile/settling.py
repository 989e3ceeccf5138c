"""The core that topics, lease policies and clients share: observe, plan, apply, and once more after a claim."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from streamhold_operator.adapters.redis import Result, Snapshot
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain import connection
from streamhold_operator.domain.actions import Action, RemoveClaim
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.reconcile.base import Context
from streamhold_operator.reconcile.sessions import Session
from streamhold_operator.store import Key

logger = logging.getLogger("streamhold_operator.reconcile")

ROUNDS = 4
"""A claim, then what it allows, makes two; more only while others change the same things."""


class Plan(Protocol):
    """What the planners of all kinds return."""

    @property
    def actions(self) -> tuple[Action, ...]: ...
    @property
    def again(self) -> bool: ...
    @property
    def refusal(self) -> Refusal | None: ...


HaveT = TypeVar("HaveT")
PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True, slots=True)
class Settled(Generic[HaveT, PlanT]):
    """How the last round went."""

    snapshot: Snapshot
    have: HaveT
    todo: PlanT
    failure: Refusal | None
    warnings: tuple[str, ...]


async def settle(
    context: Context,
    session: Session,
    *,
    streams: Mapping[str, Collection[str]] | None = None,
    users: Collection[str] = (),
    observed: Callable[[Snapshot], HaveT],
    plan: Callable[[HaveT], PlanT],
) -> Settled[HaveT, PlanT]:
    """Carry out plans until one needs no other after it.

    Raises:
        Refusal: the server could not be reached.
    """
    for _ in range(ROUNDS):
        snapshot = await session.observe(streams or {}, users)
        failed = next(
            (snapshot.failures[name] for name in (*(streams or ()), *users) if name in snapshot.failures), None
        )
        if failed is not None:
            raise failed
        have = observed(snapshot)
        todo = plan(have)
        in_conflict = todo.refusal is not None and todo.refusal.reason == Reason.CONFLICT
        if in_conflict and await clear_leftovers(context, session):
            continue  # it may have been in the way of nobody but one that is gone
        results = await applied(context, session, todo.actions)
        failure = next((result.failure for result in results if result.failure is not None), None)
        warnings = tuple(result.warning for result in results if result.warning is not None)
        if failure is not None or not todo.again:
            return Settled(snapshot, have, todo, failure, warnings)
    raise Refusal(Reason.PROGRESSING, "Its claim in Redis does not settle: something else removes it", retry_after=5.0)


async def applied(context: Context, session: Session, actions: Sequence[Action]) -> tuple[Result, ...]:
    """Carry out actions and count them."""
    results = await session.apply(actions)
    for action in actions:
        context.metrics.redis_actions.labels(type(action).__name__).inc()
    return results


async def release(context: Context, session: Session, key: Key, field: str) -> None:
    """Give up what an object claims, if it claims anything, and have those look who waited for it.

    Raises:
        Refusal: the server could not be reached.
    """
    session.interests.pop(key, None)
    if field in session.owners.records:
        await applied(context, session, [RemoveClaim(field)])
        session.take(session.owners.without(field))


async def release_gone(context: Context, key: Key) -> None:
    """Give up what an object had that is gone without a trace; what cannot be done now is done at the resync."""
    context.warned.pop(key, None)
    session = context.sessions.interested(key)
    if session is None:
        return
    record = session.interests.pop(key).record
    if session.usable and record.field in session.owners.records:
        await _clear(context, session, [connection.leftover(record)])


async def clear_leftovers(context: Context, session: Session) -> bool:
    """Remove what objects left that are gone; return whether anybody's claim went.

    Raises:
        Refusal: the server could not be reached.
    """
    leftovers = connection.plan(
        session.owners,
        cluster=context.cluster,
        alive=context.store.uids(),
        namespaces=context.settings.namespaces or None,
    )
    return await _clear(context, session, leftovers)


async def _clear(context: Context, session: Session, leftovers: Sequence[connection.Leftover]) -> bool:
    """Remove users, then claims; a claim stays, for the next resync, as long as its user cannot be removed."""
    managed = session.admin is not None and session.admin.target.acl
    deletions = [deletion for leftover in leftovers for deletion in leftover.users] if managed else []
    results = await applied(context, session, deletions)
    failed = {result.action: result.failure for result in results if result.failure is not None}
    for action, failure in failed.items():
        logger.warning("%s: %s was left behind and could not be removed: %s", session.key, action, failure.message)
    claims = [leftover.claim for leftover in leftovers if failed.keys().isdisjoint(leftover.users)]
    await applied(context, session, claims)
    for claim in claims:
        session.take(session.owners.without(claim.field))
    return bool(claims)
