"""The work queue: dedup, turns, backoff, and that no key runs twice at once. Time is passed in."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest

from streamhold_operator.queue import Backlog, Backoff, WorkQueue

pytestmark = pytest.mark.anyio


def a_backlog(*, per_group: int = 100, jitter: float = 0.0) -> Backlog[str]:
    """Return a backlog whose groups are the first letters of the keys."""
    return Backlog(
        lambda key: key[0],
        backoff=Backoff(first=1.0, factor=2.0, longest=10.0, jitter=jitter),
        per_group=per_group,
        rng=random.Random(7),
    )


def drained(backlog: Backlog[str]) -> list[str]:
    """Pop and finish everything that may run."""
    found = []
    while (key := backlog.pop()) is not None:
        found.append(key)
        backlog.done(key)
    return found


def test_a_key_added_twice_runs_once() -> None:
    backlog = a_backlog()
    backlog.add("a1")
    backlog.add("a1")
    assert drained(backlog) == ["a1"]


def test_a_key_is_never_handed_out_while_it_runs_and_runs_again_afterwards() -> None:
    backlog = a_backlog()
    backlog.add("a1")
    assert backlog.pop() == "a1"
    backlog.add("a1")
    backlog.add("a1")
    assert backlog.pop() is None
    backlog.done("a1")
    assert drained(backlog) == ["a1"]


def test_groups_take_turns_so_a_full_one_does_not_hold_up_another() -> None:
    backlog = a_backlog()
    for number in range(1000):
        backlog.add(f"a{number}")
    backlog.add("b1")
    backlog.add("c1")
    assert {backlog.pop(), backlog.pop(), backlog.pop()} == {"a0", "b1", "c1"}


def test_a_group_occupies_only_its_share_of_the_workers() -> None:
    backlog = a_backlog(per_group=2)
    for key in ("a1", "a2", "a3", "b1"):
        backlog.add(key)
    assert [backlog.pop(), backlog.pop(), backlog.pop(), backlog.pop()] == ["a1", "b1", "a2", None]
    backlog.done("a1")
    assert backlog.pop() == "a3"


def test_failures_wait_longer_each_time_up_to_the_longest_and_success_forgets_them() -> None:
    backlog = a_backlog()
    assert [backlog.retry("a1", 0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    backlog.forget("a1")
    assert backlog.retry("a1", 0.0) == 1.0


def test_a_refusal_that_names_its_own_delay_waits_at_least_that_long() -> None:
    backlog = a_backlog()
    assert backlog.retry("a1", 0.0, at_least=7.0) == 7.0


def test_jitter_spreads_keys_that_failed_together_but_keeps_near_the_plain_delay() -> None:
    backlog = a_backlog(jitter=0.25)
    delays = [backlog.retry(f"a{number}", 0.0) for number in range(200)]
    assert all(0.75 <= delay <= 1.25 for delay in delays)
    assert len(set(delays)) > 100


def test_a_sleeping_key_runs_when_its_time_comes_and_not_before() -> None:
    backlog = a_backlog()
    backlog.add_later("a1", 5.0)
    backlog.wake(4.9)
    assert backlog.pop() is None
    assert backlog.next_alarm() == 5.0
    backlog.wake(5.0)
    assert drained(backlog) == ["a1"]
    assert backlog.next_alarm() is None


def test_adding_a_sleeping_key_brings_it_forward_and_it_runs_only_once() -> None:
    backlog = a_backlog()
    backlog.add_later("a1", 5.0)
    backlog.add("a1")
    assert drained(backlog) == ["a1"]
    backlog.wake(6.0)
    assert backlog.pop() is None


def test_the_earlier_of_two_times_counts() -> None:
    backlog = a_backlog()
    backlog.add_later("a1", 5.0)
    backlog.add_later("a1", 9.0)
    backlog.add_later("a1", 3.0)
    assert backlog.next_alarm() == 3.0
    backlog.wake(3.0)
    assert drained(backlog) == ["a1"]
    backlog.wake(10.0)
    assert backlog.pop() is None


def test_a_time_set_while_the_key_runs_is_kept() -> None:
    backlog = a_backlog()
    backlog.add("a1")
    assert backlog.pop() == "a1"
    backlog.add_later("a1", 5.0)
    backlog.done("a1")
    backlog.wake(5.0)
    assert drained(backlog) == ["a1"]


def test_a_dropped_key_neither_wakes_nor_remembers_its_failures() -> None:
    backlog = a_backlog()
    backlog.retry("a1", 0.0)
    backlog.drop("a1")
    backlog.wake(100.0)
    assert backlog.pop() is None
    assert backlog.failures("a1") == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"first": 0.0}, "first"),
        ({"longest": 0.1}, "longest"),
        ({"factor": 0.5}, "factor"),
        ({"jitter": 1.0}, "jitter"),
    ],
)
def test_a_backoff_that_cannot_work_is_refused(options: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Backoff(**options)


async def test_workers_run_many_keys_at_once_but_one_key_never_twice_at_once() -> None:
    queue = WorkQueue(a_backlog())
    running: set[str] = set()
    most, runs = 0, 0

    async def work(key: str) -> None:
        nonlocal most, runs
        assert key not in running
        running.add(key)
        most = max(most, len(running))
        queue.add(key) if runs < 50 else None
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        running.discard(key)
        runs += 1

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: queue.run(work, workers=4))
        for key in ("a1", "b1", "c1", "a2"):
            queue.add(key)
        with anyio.fail_after(5):
            while runs < 50 or queue.backlog.running or len(queue.backlog):
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert most > 1


async def test_waiting_workers_wake_when_a_sleeping_key_is_due() -> None:
    queue = WorkQueue(a_backlog())
    ran = anyio.Event()

    async def work(key: str) -> None:
        ran.set()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: queue.run(work, workers=2))
        await anyio.lowlevel.checkpoint()
        queue.add_later("a1", 0.05)
        with anyio.fail_after(5):
            await ran.wait()
        group.cancel_scope.cancel()
