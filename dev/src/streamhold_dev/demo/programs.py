"""Run the example programs as pods would be run: their only knowledge is the folder of the mounted binding Secret."""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamhold_dev import folders, processes
from streamhold_dev.controlplane import ControlPlane

_GRACE = 5.0


def mount(secret: Mapping[str, Any], folder: Path) -> Path:
    """Lay a Secret out as kubelet mounts it: a hidden folder, a link `..data` to it, a link for each file.

    In a folder that has an older version, the link is turned to the new one in one step, as kubelet does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    version = Path(tempfile.mkdtemp(prefix="..version-", dir=folder))
    for name, value in secret["data"].items():
        (version / name).write_bytes(base64.b64decode(value))
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")
    for older in folder.glob("..version-*"):
        if older != version:
            shutil.rmtree(older)
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

    def end(self) -> str:
        """SIGTERM; say how it ended, in words, or that it had to be killed."""
        if not self._server.alive:
            return "had ended before"
        began = time.monotonic()
        self._server.signal(signal.SIGTERM)
        try:
            code = self._server.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._server.kill()
            return f"did not end within {_GRACE:g} s of SIGTERM"
        finally:
            self._server.end()
        return f"ended in {time.monotonic() - began:.1f} s" if code == 0 else f"ended with {code}"


def example(name: str) -> Path:
    """The path of a file below examples/."""
    return folders.REPOSITORY / "examples" / name


def secret_of_client(plane: ControlPlane, namespace: str, client: str) -> dict[str, Any]:
    """The binding Secret of a CoordinationClient, by the name that its status gives.

    Raises:
        CommandFailed: there is no such client, or it has no Secret yet.
    """
    status = plane.get("coordinationclient", client, namespace).get("status", {})
    return plane.get("secret", status.get("binding", {}).get("name", f"{client}-streamhold"), namespace)


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
