"""Run the example programs as pods would be run: their only knowledge is the folder of the mounted binding Secret."""

from __future__ import annotations

import base64
import json
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from streamhold_dev import folders, processes


def mount(secret: Mapping[str, object], folder: Path) -> Path:
    """Lay a Secret out as kubelet mounts it: a hidden folder, a link `..data` to it, a link for each file."""
    folder.mkdir(parents=True)
    version = folder / "..version-1"
    version.mkdir()
    data = secret["data"]
    if not isinstance(data, dict):
        raise TypeError(f"the Secret's data is a {type(data).__name__}")
    for name, value in data.items():
        (version / name).write_bytes(base64.b64decode(value))
        (folder / name).symlink_to(Path("..data") / name)
    (folder / "..data").symlink_to(version.name)
    return folder


class Program:
    """A running example program and what it printed."""

    def __init__(self, name: str, path: Path, *arguments: str, binding: Path, logs: Path) -> None:
        self.name = name
        self._server = processes.Server(
            name,
            [sys.executable, path, *arguments],
            logs / f"{name}.log",
            env={"STREAMHOLD_BINDING": str(binding), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "default"},
        )
        self._server.guard()

    @property
    def server(self) -> processes.Server:
        """Its process."""
        return self._server

    @property
    def lines(self) -> list[str]:
        """What it has printed so far, line by line."""
        return self._server.log.read_text(errors="replace").splitlines()

    @property
    def last(self) -> str:
        """The last line it printed."""
        lines = self.lines
        return lines[-1] if lines else "(nothing printed yet)"

    def printed(self, words: str) -> str | None:
        """The first line with these words, or None.

        Raises:
            StartError: the program ended without printing them.
        """
        alive = self._server.alive
        for line in self.lines:
            if words in line:
                return line
        if not alive:
            raise processes.StartError(f"{self.name} ended before it printed {words!r}:\n{self._server.tail()}")
        return None

    def kill(self) -> None:
        """SIGKILL: no clean-up of its own."""
        self._server.kill()

    def end(self) -> None:
        """SIGTERM, and SIGKILL when that does not help."""
        self._server.end()


def example(name: str) -> Path:
    """The path of a file below examples/."""
    return folders.REPOSITORY / "examples" / name


def secret_of(text: str) -> dict[str, object]:
    """Parse `kubectl get secret -o json`."""
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise TypeError(f"not a Secret: {text[:80]}")
    return parsed


def quickstart_for(endpoint: str, folder: Path) -> Path:
    """Copy examples/quickstart with the one line adapted that names the Redis."""
    folder.mkdir(parents=True)
    for path in sorted(example("quickstart").glob("*.yaml")):
        (folder / path.name).write_text(path.read_text().replace("redis:6379", endpoint))
    return folder


def answers(url: str) -> bool:
    """Whether an HTTP GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:  # not listening yet, or an error status
        return False
