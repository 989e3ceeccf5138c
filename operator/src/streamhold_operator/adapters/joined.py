"""Calls that wait for each other, joined into one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

__all__ = ["Joined"]

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(slots=True)
class _Batch(Generic[Q, A]):
    questions: list[Q] = field(default_factory=list)
    answers: list[A] = field(default_factory=list)
    """The one answer, once it is there."""
    failure: Exception | None = None


class Joined(Generic[Q, A]):
    """Run one batch at a time; whoever asks meanwhile gets into the next one.

    The first that may run a batch runs it for all in it. If that one is cancelled, the next of them runs it again: a
    batch must be harmless to repeat.
    """

    def __init__(self, run: Callable[[Sequence[Q]], Awaitable[A]]) -> None:
        self._run = run
        self._turn = anyio.Lock()
        self._open: _Batch[Q, A] | None = None

    async def ask(self, question: Q) -> tuple[A, Sequence[Q]]:
        """Return the answer to the batch that the question was in, and the questions that came before it in there.

        The batch begins after this call, so its answer is never older.
        """
        if self._open is None:
            self._open = _Batch()
        batch = self._open
        before = tuple(batch.questions)
        batch.questions.append(question)
        async with self._turn:
            if not batch.answers and batch.failure is None:
                if self._open is batch:
                    self._open = None
                await self._answer(batch)
        if batch.failure is not None:
            raise batch.failure
        return batch.answers[0], before

    async def _answer(self, batch: _Batch[Q, A]) -> None:
        try:
            batch.answers.append(await self._run(batch.questions))
        except Exception as exc:
            batch.failure = exc
