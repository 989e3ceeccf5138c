"""Server processes: started with a log file, ended by pid, never left behind.

A process is known by pid *and* start time, so a record read back from a file can never end a stranger that got the
same number. Servers run in their own session: Ctrl-C at the terminal reaches the tests, which then end them in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamhold_dev.waiting import NotInTime, eventually_sync


class StartError(Exception):
    """A server did not come up; the message carries the end of its log."""


class CommandFailed(Exception):
    """A command line program ended with an error; what it said is in the message and in `stderr`."""

    def __init__(self, command: Sequence[str], code: int, stdout: str, stderr: str) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr
        shown = " ".join([Path(command[0]).name, *command[1:]])
        super().__init__(f"`{shown}` ended with {code}: {(stderr or stdout).strip()}")


def run(
    command: Sequence[str | Path],
    *,
    input: str | None = None,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
) -> str:
    """Run a program to its end and return its standard output.

    Raises:
        CommandFailed: it ended with an error and `check` is true.
        subprocess.TimeoutExpired: it did not end in time (it is killed then).
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        input=input,
        stdin=None if input is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        timeout=timeout,
    )
    if check and done.returncode != 0:
        raise CommandFailed(words, done.returncode, done.stdout, done.stderr)
    return done.stdout


@dataclass(frozen=True, slots=True)
class Process:
    """A running process that may have been started by somebody else, e.g. by an earlier run."""

    name: str
    pid: int
    started: int
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat)."""

    @classmethod
    def of(cls, name: str, pid: int) -> Process:
        """Describe a process that runs now.

        Raises:
            ProcessLookupError: there is none with this pid.
        """
        state = _state(pid)
        if state is None:
            raise ProcessLookupError(f"{name}: there is no process {pid}")
        return cls(name, pid, state[1])

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that ended but was not waited for counts as ended."""
        state = _state(self.pid)
        return state is not None and state[1] == self.started and state[0] not in "ZX"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def end(self, grace: float = 5.0) -> None:
        """Ask it to end, then make it; returns when it is gone."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if not self._gone_within(grace):
            self.signal(signal.SIGKILL)
            if not self._gone_within(grace):
                raise NotInTime(f"{self.name} (pid {self.pid}) did not end after SIGKILL")

    def _gone_within(self, seconds: float) -> bool:
        try:
            return eventually_sync(lambda: not self.alive, timeout=seconds, interval=0.01)
        except NotInTime:
            return False


class Server:
    """A server process that we started: it writes to a log file and, once `guard` was called, dies with its owner."""

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        self._watchdog: subprocess.Popen[bytes] | None = None
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        self.process = Process.of(name, self._popen.pid)

    @property
    def pid(self) -> int:
        """The server's own process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the server has ended."""
        if self.alive:
            self._popen.send_signal(number)

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        code = self._popen.wait(timeout)
        self._dismiss()
        return code

    def kill(self) -> None:
        """End it the hard way (SIGKILL) and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(10)

    def end(self, grace: float = 5.0) -> None:
        """Ask it to end (SIGTERM), make it after `grace` seconds, and wait until it is gone."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            self.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def guard(self, *, owner: int | None = None, folder: Path | None = None) -> None:
        """End it (and remove `folder`) when its owner, by default this process, dies."""
        self._watchdog = guard([self], owner=owner, folder=folder)

    def disown(self) -> None:
        """Leave it running after this process ends: whoever has its `process` ends it."""
        disown(self._popen)
        if self._watchdog is not None:
            disown(self._watchdog)
            self._watchdog = None

    def _dismiss(self) -> None:
        if self._watchdog is not None:
            dismiss(self._watchdog)
            self._watchdog = None

    def tail(self, lines: int = 15) -> str:
        """The end of its log, for error messages."""
        return tail_of(self.log, lines)


def tail_of(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, indented, for error messages."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (its log is empty)"


def guard(
    servers: Sequence[Server], *, owner: int | None = None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a watchdog that ends several servers together when the owner, by default this process, dies."""
    script = Path(__file__).with_name("watchdog.py")
    pids = [str(server.pid) for server in servers]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), str(owner or os.getpid()), str(folder or "-"), *pids],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def disown(popen: subprocess.Popen[bytes]) -> None:
    """Make Popen forget its process: it warns when it is collected while the process still runs."""
    popen.returncode = 0


def dismiss(watchdog: subprocess.Popen[bytes]) -> None:
    """End a watchdog whose servers are gone."""
    watchdog.kill()
    watchdog.wait(10)


def _state(pid: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return fields[0], int(fields[19])
