"""End servers whose owner died: run as `python -I -S watchdog.py OWNER FOLDER PID…`, imports nothing of ours.

It holds a pidfd for each process, so it can neither miss an end nor hit another process that got the same number.
PR_SET_PDEATHSIG would be shorter, but it fires when the *thread* that started the server ends.
FOLDER is removed after the owner's death (`-` for none): whoever would have done it is gone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys

_GRACE_MS = 3_000


def watch(owner: int, folder: str, pids: list[int]) -> None:
    """Wait for the owner's end, then end the servers; return early when they are all gone."""
    servers = [fd for fd in map(_open, pids) if fd is not None]
    owner_fd = _open(owner)
    while servers and owner_fd is not None:
        ended = _ended([owner_fd, *servers], None)
        servers = [fd for fd in servers if fd not in ended]
        if owner_fd in ended:
            break
    else:
        if owner_fd is not None:
            return
    _send(servers, signal.SIGTERM)
    left = _wait(servers)
    _send(left, signal.SIGKILL)
    _wait(left)
    if folder != "-":
        shutil.rmtree(folder, ignore_errors=True)


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _ended(fds: list[int], timeout_ms: int | None) -> set[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_ms)}


def _wait(fds: list[int]) -> list[int]:
    left = fds
    while left:
        ended = _ended(left, _GRACE_MS)
        if not ended:
            break
        left = [fd for fd in left if fd not in ended]
    return left


def _send(fds: list[int], number: signal.Signals) -> None:
    for fd in fds:
        try:
            signal.pidfd_send_signal(fd, number)
            signal.pidfd_send_signal(fd, signal.SIGCONT)  # a stopped process would not see it
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the owner may still need its servers
    watch(int(sys.argv[1]), sys.argv[2], [int(argument) for argument in sys.argv[3:]])
