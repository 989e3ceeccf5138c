"""The endpoints: liveness by the age of the watch streams, and a small server that answers plainly."""

from __future__ import annotations

import socket

import anyio
import pytest

from streamhold_operator.health import Health, Page, serve_pages

pytestmark = pytest.mark.anyio


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_silent_stream_makes_it_unhealthy_and_is_named_until_it_shows_life_again() -> None:
    clock = Clock()
    health = Health(clock=clock, longest_silence=60)
    health.alive("StreamTopic")
    health.alive("Secret")
    assert health.healthz().status == 200
    clock.now += 61
    health.alive("Secret")
    page = health.healthz()
    assert page.status == 503
    assert b"StreamTopic (61 s)" in page.body
    assert b"Secret" not in page.body
    health.alive("StreamTopic")
    assert health.healthz().status == 200


def test_it_is_ready_once_the_cluster_was_read() -> None:
    health = Health(clock=Clock())
    assert health.readyz().status == 503
    health.ready = True
    assert health.readyz().status == 200


async def ask(port: int, request: bytes) -> bytes:
    stream = await anyio.connect_tcp("127.0.0.1", port)
    async with stream:
        await stream.send(request)
        answer = b""
        try:
            while True:
                answer += await stream.receive()
        except anyio.EndOfStream:
            return answer


async def test_pages_are_served_and_everything_else_is_refused_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with anyio.create_task_group() as group:
        group.start_soon(serve_pages, port, "127.0.0.1", {"/page": lambda: Page(b"hello\n")})
        with anyio.fail_after(5):
            while True:
                try:
                    found = await ask(port, b"GET /page?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
                    break
                except OSError:
                    await anyio.sleep(0.01)
            assert found.startswith(b"HTTP/1.1 200 OK\r\n")
            assert found.endswith(b"\r\n\r\nhello\n")
            assert (await ask(port, b"HEAD /page HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
            assert (await ask(port, b"GET /none HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
            assert (await ask(port, b"POST /page HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
            assert (await ask(port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        group.cancel_scope.cancel()
