"""Calls that wait for each other get into one batch, and one that is given up harms none of the others."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from streamhold_operator.adapters.joined import Joined

pytestmark = pytest.mark.anyio


class Work:
    """Batches that last until they are let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = anyio.Event()
        self.started = anyio.Event()

    async def run(self, questions: Sequence[int]) -> int:
        self.batches.append(list(questions))
        self.started.set()
        await self.gate.wait()
        if -1 in questions:
            raise ValueError("no answer")
        return sum(questions)


async def test_who_asks_while_a_batch_runs_is_in_the_next() -> None:
    work = Work()
    joined = Joined(work.run)
    answers: dict[int, tuple[int, Sequence[int]]] = {}

    async def ask(question: int) -> None:
        answers[question] = await joined.ask(question)

    async with anyio.create_task_group() as group:
        group.start_soon(ask, 1)
        await work.started.wait()
        for question in (2, 3, 4):
            group.start_soon(ask, question)
        await anyio.wait_all_tasks_blocked()
        work.gate.set()
    assert work.batches == [[1], [2, 3, 4]]
    assert answers == {1: (1, ()), 2: (9, ()), 3: (9, (2,)), 4: (9, (2, 3))}


async def test_a_failure_reaches_all_of_its_batch_and_nobody_else() -> None:
    work = Work()
    work.gate.set()
    joined = Joined(work.run)
    failed: list[int] = []

    async def ask(question: int) -> None:
        try:
            await joined.ask(question)
        except ValueError:
            failed.append(question)

    async with anyio.create_task_group() as group:
        for question in (-1, 7):
            group.start_soon(ask, question)
    assert sorted(failed) == [-1, 7]
    assert (await joined.ask(5))[0] == 5


async def test_when_the_first_is_cancelled_the_next_runs_the_batch() -> None:
    work = Work()
    joined = Joined(work.run)
    answers: list[int] = []

    async def ask(question: int) -> None:
        answers.append((await joined.ask(question))[0])

    async with anyio.create_task_group() as group:
        first = anyio.CancelScope()

        async def impatient() -> None:
            with first:
                await joined.ask(1)

        group.start_soon(impatient)
        await work.started.wait()
        group.start_soon(ask, 2)
        group.start_soon(ask, 3)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        work.gate.set()
    assert answers == [5, 5]
    assert work.batches == [[1], [2, 3]]


async def test_one_that_gave_up_waiting_holds_nobody_up() -> None:
    work = Work()
    joined = Joined(work.run)
    async with anyio.create_task_group() as group:
        group.start_soon(joined.ask, 1)
        await work.started.wait()
        with anyio.move_on_after(0.01):
            await joined.ask(2)
        work.gate.set()
    assert (await joined.ask(3))[0] == 5  # its question stays in the batch; asking it is harmless
