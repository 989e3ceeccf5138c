"""Two small HTTP endpoints: /healthz and /readyz for the kubelet, /metrics for Prometheus.

They run in the operator's own event loop: an answer at all proves that the loop is alive. /healthz fails when a watch
stream has shown no sign of life for too long (a restart helps); never because a Redis is away (a restart would not).
/readyz is for start-up: it holds once the objects of the cluster were read for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio
import anyio.abc

TEXT = "text/plain; charset=utf-8"
_LARGEST_REQUEST = 16 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    """What a path answers."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


@dataclass(slots=True)
class Health:
    """When each watch stream last proved to be alive."""

    clock: Callable[[], float]
    longest_silence: float = 300.0
    """Seconds after which a stream counts as dead. Comparing with the API server proves it alive: idle is fine."""
    ready: bool = False
    _alive_at: dict[str, float] = field(default_factory=dict)

    def alive(self, stream: str) -> None:
        """Note that the stream delivered, or was compared and had missed nothing."""
        self._alive_at[stream] = self.clock()

    def dead_streams(self) -> list[str]:
        """Return the streams that were silent too long, with their age."""
        now = self.clock()
        ages = {stream: now - at for stream, at in sorted(self._alive_at.items())}
        return [f"{stream} ({age:.0f} s)" for stream, age in ages.items() if age > self.longest_silence]

    def healthz(self) -> Page:
        """Answer the liveness probe."""
        dead = self.dead_streams()
        if dead:
            return Page(f"no sign of life from the watch of {', '.join(dead)}\n".encode(), 503)
        return Page(b"ok\n")

    def readyz(self) -> Page:
        """Answer the readiness probe."""
        if not self.ready:
            return Page(b"the objects of the cluster have not been read yet\n", 503)
        return Page(b"ok\n")


async def serve_pages(port: int, address: str, pages: Mapping[str, Callable[[], Page]]) -> None:
    """Serve the pages until cancelled.

    Raises:
        OSError: the port cannot be opened; the message names it.
    """

    async def answer(stream: anyio.abc.SocketStream) -> None:
        with anyio.move_on_after(5):
            async with stream:
                try:
                    await _answer(stream, pages)
                except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the asker left: there is nobody to tell

    listener = await anyio.create_tcp_listener(local_host=address or None, local_port=port)
    async with listener:
        await listener.serve(answer)


async def _answer(stream: anyio.abc.SocketStream, pages: Mapping[str, Callable[[], Page]]) -> None:
    request = b""
    while b"\r\n\r\n" not in request and len(request) < _LARGEST_REQUEST:
        request += await stream.receive()
    words = request.split(b"\r\n", 1)[0].split(b" ")
    path = words[1].split(b"?", 1)[0].decode("ascii", "replace") if len(words) == 3 else ""
    if words[0] not in (b"GET", b"HEAD"):
        page = Page(b"only GET is served here\n", 405)
    elif path in pages:
        page = pages[path]()
    else:
        page = Page(f"served here: {', '.join(pages)}\n".encode(), 404)
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    )
    await stream.send(head.encode() + (b"" if words[0] == b"HEAD" else page.body))


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
