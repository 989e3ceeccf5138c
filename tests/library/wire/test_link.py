"""The link byte by byte: who gets which reply, what is written when, and what a loss means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhold._backends.redis.command import DeadlinePassed, LinkLost, NotAtomic, Prepared, ReplyError
from streamhold._backends.redis.endpoint import Endpoint, StaticCredentials
from streamhold._backends.redis.link import Link
from support.transport import EchoServer, RecordingTransport

pytestmark = pytest.mark.anyio


def a_link(**options: Any) -> tuple[Link, RecordingTransport]:
    """A link whose far end is in memory, past its handshake."""
    link = Link(Endpoint(), StaticCredentials(), name="test", **options)
    transport = RecordingTransport()
    link.connection_made(transport)
    return link, transport


async def a_turn() -> None:
    """Let everything that is due in this turn of the loop and its flush happen."""
    for _ in range(3):
        await asyncio.sleep(0)


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- one write per turn ----


async def test_all_commands_of_one_turn_leave_in_one_write() -> None:
    link, transport = a_link()
    futures = [link.submit(("ECHO", n)) for n in range(100)]
    assert transport.writes == []
    await a_turn()
    assert len(transport.writes) == 1
    link.data_received(EchoServer().answer(transport.writes[0]))
    assert await asyncio.gather(*futures) == [b"%d" % n for n in range(100)]


async def test_commands_of_many_tasks_leave_in_one_write_too() -> None:
    link, transport = a_link()

    async def ask(n: int) -> bytes:
        reply: bytes = await link.submit(("ECHO", n))
        return reply

    tasks = [asyncio.create_task(ask(n)) for n in range(50)]
    await a_turn()
    assert len(transport.writes) == 1
    link.data_received(EchoServer().answer(transport.writes[0]))
    assert await asyncio.gather(*tasks) == [b"%d" % n for n in range(50)]


async def test_a_transaction_is_contiguous_among_other_commands() -> None:
    link, transport = a_link()
    before = link.submit(("ECHO", "before"))
    transaction = link.submit_transaction([("ECHO", "one"), ("ECHO", "two")])
    after = link.submit(("ECHO", "after"))
    await a_turn()
    server = EchoServer()
    link.data_received(server.answer(transport.writes[0]))
    assert [command[-1] for command in server.commands] == [b"before", b"MULTI", b"one", b"two", b"EXEC", b"after"]
    assert (await before, await transaction, await after) == (b"before", [b"one", b"two"], b"after")


@pytest.mark.parametrize("last", [b"", b"x", b"y" * 12, b"\r\n", b"z" * 100_000])
async def test_a_prepared_command_or_transaction_is_the_same_on_the_wire(last: bytes) -> None:
    link, transport = a_link()
    command, transaction = Prepared((b"ECHO",)), Prepared((b"ECHO",), ("ECHO", 7), ("ECHO", "end"))
    futures = [
        link.submit_packed(command.pack(last)),
        link.submit_packed(transaction.pack(last), replies=transaction.replies),
    ]
    await a_turn()
    prepared = transport.writes.pop()
    link.data_received(EchoServer().answer(prepared))
    assert await asyncio.gather(*futures) == [last, [last, b"7", b"end"]]
    link.submit(("ECHO", last)).add_done_callback(asyncio.Future.exception)
    link.submit_transaction([("ECHO", last), ("ECHO", 7), ("ECHO", "end")]).add_done_callback(asyncio.Future.exception)
    await a_turn()
    assert transport.writes == [prepared]
    link.connection_lost(None)


# ---- replies, however they are cut ----

REPLIES = (
    b"+OK\r\n:-7\r\n$-1\r\n*-1\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n*2\r\n$1\r\na\r\n*1\r\n:3\r\n-WRONGTYPE no\r\n"
    b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$3\r\n1-0\r\n-ERR later\r\n+OK\r\n-ERR sooner\r\n-EXECABORT x\r\n*0\r\n"
)


async def _read(pieces: list[bytes]) -> list[object]:
    link, _ = a_link()
    futures: list[asyncio.Future[Any]] = [link.submit(("PING",)) for _ in range(8)]
    futures.append(link.submit_transaction([("A",), ("B",)]))
    futures.append(link.submit_transaction([("C",)]))
    futures.append(link.submit(("PING",)))
    await a_turn()
    for piece in pieces:
        link.data_received(piece)
    return list(await asyncio.gather(*futures, return_exceptions=True))


def _check(seen: list[object]) -> None:
    assert seen[:7] == [b"OK", -7, None, None, b"", b"\r\n\r\n", [b"a", [3]]]
    wrong, done, refused, last = seen[7:]
    assert isinstance(wrong, ReplyError)
    assert (wrong.code, wrong.message) == ("WRONGTYPE", "WRONGTYPE no")
    assert isinstance(done, list)
    assert done[0] == b"1-0"
    assert isinstance(done[1], ReplyError)
    assert isinstance(refused, ReplyError)
    assert refused.message == "ERR sooner"
    assert last == []


async def test_replies_split_at_every_byte_are_the_same() -> None:
    for at in range(len(REPLIES) + 1):
        _check(await _read([REPLIES[:at], REPLIES[at:]]))


async def test_replies_of_single_bytes_are_the_same() -> None:
    _check(await _read([REPLIES[at : at + 1] for at in range(len(REPLIES))]))


# ---- giving up never shifts a reply ----

steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 4)),
        st.tuples(st.just("transaction"), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("turn"), st.just(0)),
        st.tuples(st.just("hear"), st.integers(1, 40)),
    ),
    max_size=60,
)


@given(plan=steps)
def test_callers_that_give_up_never_shift_the_replies_of_others(plan: list[tuple[str, int]]) -> None:
    asyncio.run(_play(plan))


async def _play(plan: list[tuple[str, int]]) -> None:
    link, transport = a_link()
    server = EchoServer()
    expected: list[tuple[asyncio.Future[Any], object]] = []
    numbers = iter(range(10_000))
    on_the_way = b""

    def carry() -> bytes:
        sent, transport.writes = transport.writes, []
        return b"".join(server.answer(data) for data in sent)

    for what, amount in plan:
        if what == "submit":
            for _ in range(amount):
                n = next(numbers)
                expected.append((link.submit(("ECHO", n)), b"%d" % n))
        elif what == "transaction":
            words = [next(numbers) for _ in range(amount)]
            future = link.submit_transaction([("ECHO", n) for n in words])
            expected.append((future, [b"%d" % n for n in words]))
        elif what == "cancel" and amount < len(expected):
            expected[amount][0].cancel()
        elif what == "turn":
            await a_turn()
            on_the_way += carry()
        else:
            link.data_received(on_the_way[:amount])
            on_the_way = on_the_way[amount:]
    await a_turn()
    link.data_received(on_the_way + carry())
    assert link.unanswered == 0
    for future, reply in expected:
        assert future.cancelled() or future.result() == reply


async def test_a_command_given_up_before_it_left_is_never_sent() -> None:
    link, transport = a_link()
    kept, dropped = link.submit(("ECHO", "kept")), link.submit(("ECHO", "dropped"))
    dropped.cancel()
    await a_turn()
    server = EchoServer()
    link.data_received(server.answer(b"".join(transport.writes)))
    assert await kept == b"kept"
    assert server.commands == [[b"ECHO", b"kept"]]


# ---- a peer that breaks the rules ----


@pytest.mark.parametrize("garbage", [b"!what\r\n", b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n", b"*2\r\n?1\r\n"])
async def test_a_protocol_error_closes_the_link(garbage: bytes) -> None:
    link, transport = a_link()
    future = link.submit(("PING",))
    await a_turn()
    link.data_received(garbage)
    with pytest.raises(LinkLost, match="Redis protocol") as lost:
        await future
    assert lost.value.sent
    assert transport.closed
    assert not link.usable


async def test_a_reply_that_nothing_asked_for_closes_the_link() -> None:
    link, transport = a_link()
    link.data_received(b"+surprise\r\n")
    assert transport.closed
    with pytest.raises(LinkLost, match="nothing asked for"):
        await link.submit(("PING",))


async def test_error_texts_that_are_no_utf8_do_not_hurt() -> None:
    link, _ = a_link()
    future, after = link.submit(("PING",)), link.submit(("PING",))
    await a_turn()
    link.data_received(b"-ERR \xff\xfe broken\r\n+PONG\r\n")
    with pytest.raises(ReplyError, match="broken"):
        await future
    assert await after == b"PONG"


async def test_an_exec_that_is_refused_closes_the_link_because_the_server_may_still_be_queueing() -> None:
    link, transport = a_link()
    future = link.submit_transaction([("XADD",)])
    await a_turn()
    link.data_received(b"+OK\r\n+QUEUED\r\n-NOPERM exec\r\n")
    with pytest.raises(ReplyError, match="NOPERM"):
        await future
    assert transport.closed


async def test_commands_that_ran_after_a_refused_multi_are_not_called_refused() -> None:
    link, _ = a_link()
    ran = link.submit_transaction([("XADD",), ("PEXPIRE",)])
    await a_turn()
    link.data_received(b"-NOPERM multi\r\n$3\r\n1-0\r\n:1\r\n-ERR EXEC without MULTI\r\n")
    with pytest.raises(NotAtomic, match="NOPERM"):
        await ran


# ---- deadlines and silence ----


async def test_deadlines_tell_whether_the_command_left() -> None:
    link, transport = a_link()
    sent = link.submit(("PING",), now() + 0.05)
    await a_turn()
    link.pause_writing()
    unsent = link.submit(("PING",), now() + 0.05)
    for future, left in ((sent, True), (unsent, False)):
        with pytest.raises(DeadlinePassed) as passed:
            await future
        assert passed.value.sent is left
    assert len(transport.writes) == 1
    link.resume_writing()
    assert len(transport.writes) == 1, "a command whose caller gave up was sent"


async def test_a_late_reply_goes_to_nobody() -> None:
    link, _ = a_link()
    slow = link.submit(("ECHO", "slow"), now() + 0.02)
    patient = link.submit(("ECHO", "patient"), now() + 10)
    with pytest.raises(DeadlinePassed):
        await slow
    link.data_received(b"$4\r\nslow\r\n$7\r\npatient\r\n")
    assert await patient == b"patient"


async def test_many_deadlines_each_pass_in_their_order() -> None:
    link, _ = a_link()
    start = now()
    futures = {
        after: link.submit(("PING",), start + after) for after in Random(1).sample([0.01 * n for n in range(1, 21)], 20)
    }
    early: list[float] = []
    left_behind: list[tuple[float, float]] = []

    def check(passed: float) -> None:
        if now() - start < passed:
            early.append(passed)
        # Several may be found passed in one look; none may be passed over for a later one.
        left_behind.extend((passed, after) for after, one in futures.items() if after < passed and not one.done())

    for after, future in futures.items():
        future.add_done_callback(lambda _, after=after: check(after))  # type: ignore[misc]
    await asyncio.gather(*map(_quietly, futures.values()))
    assert not early
    assert not left_behind


async def _quietly(future: asyncio.Future[Any]) -> None:
    with pytest.raises(DeadlinePassed):
        await future


async def test_silence_while_replies_are_due_closes_the_link() -> None:
    link, transport = a_link(silence_limit=0.1)
    sent = link.submit(("PING",), now() + 60)
    with pytest.raises(LinkLost, match="no byte") as lost:
        await asyncio.wait_for(sent, 2)
    assert lost.value.sent
    assert transport.aborted


async def test_an_idle_link_may_be_silent() -> None:
    link, _ = a_link(silence_limit=0.05)
    future = link.submit(("PING",))
    await a_turn()
    link.data_received(b"+PONG\r\n")
    await future
    await asyncio.sleep(0.2)
    assert link.usable
    again = link.submit(("PING",), now() + 5)
    await a_turn()
    link.data_received(b"+PONG\r\n")
    assert await again == b"PONG"


async def test_a_slow_link_that_still_speaks_is_not_dead() -> None:
    link, _ = a_link(silence_limit=0.2)
    futures = [link.submit(("PING",), now() + 10) for _ in range(6)]
    for _ in range(5):
        await asyncio.sleep(0.1)
        link.data_received(b"+PONG\r\n")
    assert link.usable
    link.data_received(b"+PONG\r\n")
    assert await asyncio.gather(*futures) == [b"PONG"] * 6


async def test_a_large_command_may_take_longer_to_leave_than_a_silence_lasts() -> None:
    link, transport = a_link(silence_limit=0.6)
    future = link.submit(("SET", "key", b"x" * 1_000_000), now() + 30)
    transport.unwritten = 1_000_000
    for _ in range(12):
        await asyncio.sleep(0.1)
        transport.unwritten -= 80_000
    assert link.usable
    link.data_received(b"+OK\r\n")
    assert await future == b"OK"


async def test_a_peer_that_takes_nothing_more_of_a_large_command_is_dead() -> None:
    link, transport = a_link(silence_limit=0.6)
    future = link.submit(("SET", "key", b"x" * 1_000_000), now() + 30)
    transport.unwritten = 900_000
    with pytest.raises(LinkLost, match="no byte"):
        await asyncio.wait_for(future, 5)


async def test_a_reply_that_is_arriving_may_take_longer_than_its_deadline() -> None:
    link, _ = a_link(silence_limit=None, stretch=0.6)
    future = link.submit(("XREADGROUP",), now() + 0.2)
    await a_turn()
    link.data_received(b"$1000\r\n")
    for _ in range(10):
        await asyncio.sleep(0.1)
        link.data_received(b"x" * 100)
    assert not future.done()
    link.data_received(b"\r\n")
    assert await future == b"x" * 1000


async def test_a_reply_that_stops_arriving_fails_after_its_deadline() -> None:
    link, _ = a_link(silence_limit=None, stretch=0.2)
    future = link.submit(("XREADGROUP",), now() + 0.1)
    await a_turn()
    link.data_received(b"$1000\r\nxxx")
    with pytest.raises(DeadlinePassed):
        await asyncio.wait_for(future, 5)


async def test_a_deadline_that_passes_in_a_long_silence_closes_a_reading_link() -> None:
    link, _ = a_link(silence_limit=None)
    blocked = link.submit(("XREADGROUP",), now() + 1.1)
    behind = link.submit(("PING",), now() + 60)
    with pytest.raises(DeadlinePassed):
        await asyncio.wait_for(blocked, 3)
    with pytest.raises(LinkLost, match="no byte"):
        await asyncio.wait_for(behind, 1)


async def test_a_short_deadline_does_not_close_the_link_for_others() -> None:
    link, _ = a_link(silence_limit=5.0)
    hasty, patient = link.submit(("PING",), now() + 0.03), link.submit(("PING",), now() + 10)
    with pytest.raises(DeadlinePassed):
        await hasty
    assert link.usable
    link.data_received(b"+PONG\r\n+PONG\r\n")
    assert await patient == b"PONG"


# ---- back-pressure ----


async def test_a_paused_transport_is_not_written_to_until_it_resumes() -> None:
    link, transport = a_link()
    link.pause_writing()
    futures = [link.submit(("ECHO", n)) for n in range(3)]
    await a_turn()
    assert transport.writes == []
    link.resume_writing()
    assert len(transport.writes) == 1
    link.data_received(EchoServer().answer(transport.writes[0]))
    assert await asyncio.gather(*futures) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("options", [{"max_queued": 4}, {"max_queued_bytes": 4 * 50}])
async def test_callers_beyond_the_bound_wait_their_turn_and_none_is_failed(options: dict[str, int]) -> None:
    link, transport = a_link(**options)
    link.pause_writing()
    server, order, most, most_bytes = EchoServer(), [], 0, 0

    async def ask(n: int) -> None:
        nonlocal most, most_bytes
        if link.full:
            await link.room()
        future = link.submit(("ECHO", b"%025d" % n))
        most, most_bytes = max(most, link.unanswered), max(most_bytes, link.unwritten_bytes)
        order.append(int(await future))

    tasks = [asyncio.create_task(ask(n)) for n in range(30)]
    await a_turn()
    assert link.full
    link.resume_writing()
    while not all(task.done() for task in tasks):
        await a_turn()
        sent, transport.writes = transport.writes, []
        link.data_received(b"".join(map(server.answer, sent)))
    await asyncio.gather(*tasks)
    assert order == list(range(30))
    assert most <= options.get("max_queued", 30)
    assert most_bytes < options.get("max_queued_bytes", 10_000) + 50
    assert not link.full


async def test_a_waiting_caller_that_gives_up_leaves_its_place_to_the_next() -> None:
    link, transport = a_link(max_queued=1)
    first = link.submit(("ECHO", "first"))
    waiting = [asyncio.create_task(link.room()) for _ in range(3)]
    await a_turn()
    waiting[0].cancel()
    await a_turn()
    link.data_received(EchoServer().answer(transport.writes[0]))
    assert await first == b"first"
    waiting[1].cancel()  # it was told that there is room, and never used it
    await a_turn()
    assert waiting[2].done()
    assert waiting[2].exception() is None


async def test_waiting_callers_are_told_of_a_loss() -> None:
    link, _ = a_link(max_queued=1)
    future = link.submit(("PING",))
    waiting = asyncio.create_task(link.room())
    await a_turn()
    link.connection_lost(None)
    for each in (future, waiting):
        with pytest.raises(LinkLost):
            await each


# ---- the end ----


async def test_a_loss_tells_sent_from_unsent_and_the_owner_once() -> None:
    told: list[Link] = []
    link, _ = a_link(on_lost=told.append)
    sent = link.submit(("PING",))
    await a_turn()
    link.pause_writing()
    unsent = link.submit(("PING",))
    link.connection_lost(ConnectionResetError("reset"))
    link.connection_lost(None)
    for future, left in ((sent, True), (unsent, False)):
        with pytest.raises(LinkLost, match="reset") as lost:
            await future
        assert lost.value.sent is left
    assert told == [link]
    with pytest.raises(LinkLost) as late:
        await link.submit(("PING",))
    assert not late.value.sent


async def test_a_retired_link_answers_what_it_accepted_and_closes() -> None:
    told: list[Link] = []
    link, transport = a_link(on_lost=told.append)
    future = link.submit(("PING",))
    await a_turn()
    link.retire()
    assert (told, link.usable, transport.closed) == ([], False, False)
    link.data_received(b"+PONG\r\n")
    assert await future == b"PONG"
    assert (told, transport.closed) == ([link], True)


@pytest.mark.parametrize("end", [lambda link: link.aclose(), lambda link: link.connection_lost(None)])
async def test_bytes_after_the_end_are_ignored(end: Callable[[Link], Any]) -> None:
    link, _ = a_link()
    ending = end(link)
    if ending is not None:
        link._gone.set_result(None)  # type: ignore[union-attr]
        await ending
    link.data_received(b"+late\r\n")
    assert not link.usable
