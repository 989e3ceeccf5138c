"""What keeps running after a command ended: `up`, and the demo with KEEP=1; `down` ends it.

Each kept environment has a folder below run/ in the checkout: `kept.json` lists its processes, `controlplane/` is its
control plane if it has one.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from streamhold_dev import binaries, folders
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.processes import Process
from streamhold_dev.redisserver import RedisServer

_STATE = "kept.json"


class AlreadyUp(Exception):
    """An environment of this kind is kept already."""


def keep(folder: Path, processes: Sequence[Process]) -> None:
    """Note the processes of an environment, besides its control plane, for `down`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STATE).write_text(json.dumps([dataclasses.asdict(process) for process in processes], indent=2))


def up(run: Path = folders.RUN) -> str:
    """Start a control plane with the project's CRDs and a Valkey that stay; return how to use them.

    Raises:
        AlreadyUp: they run; `down` ends them.
        BuildFailed, StartError: a part could not be had or did not start.
    """
    folder = run / "up"
    if ControlPlane.is_in(folder / "controlplane"):
        raise AlreadyUp(f"it is up already ({folder}): `make down` ends it")
    binaries.ensure()
    shutil.rmtree(folder, ignore_errors=True)
    plane = ControlPlane.start(folder / "controlplane", watched=False)
    redis = RedisServer(password=secrets.token_urlsafe(12), aclfile=True, folder=folder / "redis").start(watched=False)
    keep(folder, [redis.server.process])
    crds = sorted((folders.REPOSITORY / "crds").glob("*.yaml"))
    if crds:
        plane.kubectl("apply", "--server-side", *(f"--filename={file}" for file in crds))
    lines = [
        f"export KUBECONFIG={plane.kubeconfig}",
        f"export STREAMHOLD_DEV_KUBECONFIG={plane.kubeconfig}  # for pytest",
        f"export REDIS_URL={redis.url()}",
        f"# kubectl: {binaries.need('kubectl')}, helm: {binaries.need('helm')}; `make down` ends it",
    ]
    plane.disown()
    redis.server.disown()
    return "\n".join(lines)


def down(run: Path = folders.RUN) -> list[str]:
    """End everything that is kept and remove its folders; return what was ended."""
    ended: list[str] = []
    for folder in sorted(run.glob("*/")):
        state = folder / _STATE
        written = json.loads(state.read_text()) if state.exists() else []
        for process in [Process(**one) for one in reversed(written)]:
            if process.alive:
                ended.append(f"{folder.name}: {process.name}")
            process.end()
        if ControlPlane.end_in(folder / "controlplane"):
            ended.append(f"{folder.name}: control plane")
        shutil.rmtree(folder)
    return ended
