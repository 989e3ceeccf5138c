"""Free loopback ports for servers that must be able to come back on the same one.

Ports are taken from below the kernel's range for outgoing connections: a server that is down for a moment would
otherwise find its port taken by some client. Not guaranteed: another process may take a port between the look and the
bind, so whoever starts a server on one tries again with the next.
"""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
_LOWEST, _HIGHEST = 16_000, 31_999


def free_port() -> int:
    """Find a port that nothing listens on now.

    Raises:
        OSError: none was found in 200 tries.
    """
    for _ in range(200):
        port = random.randint(_LOWEST, _HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on {HOST} between {_LOWEST} and {_HIGHEST}: what listens there? (ss -ltn)")
