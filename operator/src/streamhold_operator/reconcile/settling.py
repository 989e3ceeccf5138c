"""The core that topics, lease policies and clients share: observe, plan, apply, and once more after a claim."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from streamhold_operator.adapters.redis import Result, Snapshot
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.actions import Action, RemoveClaim
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.reconcile.base import Context
from streamhold_operator.reconcile.sessions import Session
from streamhold_operator.store import Key

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
    """Give up what an object claimed that is gone without a trace; what cannot be done now is done at the resync."""
    context.warned.pop(key, None)
    session = context.sessions.interested(key)
    if session is None:
        return
    field = session.interests[key].record.field
    if session.usable:
        await release(context, session, key, field)
    else:
        session.interests.pop(key, None)
