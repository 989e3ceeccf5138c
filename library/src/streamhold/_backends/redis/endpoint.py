"""The other end of a link: where it is, and who we are there."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Credentials", "Endpoint", "StaticCredentials", "watch_for_a_dead_peer"]

Credentials: TypeAlias = Callable[[], tuple[str | None, str | None]]
"""Read anew at each connect, in a worker thread: (user name, password)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens and which of its databases is meant."""

    host: str = "localhost"
    port: int = 6379
    database: int = 0
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name that the server's certificate must bear; `host` unless set."""
    path: str | None = None
    """A Unix socket to use instead of host and port."""

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}/{self.database}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True)
class StaticCredentials:
    """Credentials that never change, read without a thread."""

    username: str | None = None
    password: str | None = None

    def __call__(self) -> tuple[str | None, str | None]:
        return self.username, self.password

    def __repr__(self) -> str:
        return f"StaticCredentials({self.username!r}, …)"


def watch_for_a_dead_peer(sock: Any) -> None:
    """Let the kernel notice a peer that vanished while the link is idle, without sending commands."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # Not every platform has each of these, and none is needed for correctness.
    for level, option, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    ):
        number = getattr(socket, option, None)
        if number is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(level, number, value)
